/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the doctor share: the state of one examination, how a finding is added, and how
 * files of the host are read. One thread.
 */
#ifndef DOCTOR_INNER_H
#define DOCTOR_INNER_H

#include <assert.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "config/unit.h"
#include "engine/doctor/doctor.h"
#include "numa/plan.h"
#include "numa/topology.h"

#define DOCTOR_FINDINGS_MAX 512
#define GIB (1ull << 30)
static_assert(CPU_SETSIZE >= TOPOLOGY_CPUS_MAX, "a set has room for every core of the plan");

/* Whether an engine has what the settings want: then it is neither free nor lacking. */
enum doctor_engine {
	ENGINE_ABSENT,
	ENGINE_SERVES,  /* its report is there */
	ENGINE_UNASKED, /* one is there, or not: it could not be asked */
};

struct doctor {
	const struct doctor_options *options;
	const struct settings *s;
	struct settings listening; /* the same with the addresses that the engine listens at */
	const char *root;          /* "" or the folder of the tree */
	const char *check;         /* name of the check that runs */
	struct plan plan;          /* without `planned`, rails without node and core */
	bool planned;              /* plan_make() succeeded */
	char plan_errors[1024];    /* what it logged */
	struct topology *topology; /* NULL: it cannot be read */
	cpu_set_t poll;            /* the cores of poll cores */
	unsigned soft, nics;       /* rails that are software NICs, and others */
	enum doctor_engine engine;
	long pid;         /* of the engine that serves; 0: none does, or it has not told */
	const char *user; /* that runs the engine; NULL: the caller */
	bool of_unit;     /* it is the user of the unit, which starts the engine */
	struct unit unit; /* only if of_unit */
	bool unit_silent; /* systemctl has not told whether there is a unit */
	/* the folder of /proc whose limits and cgroups are the engine's; "": not known, see why */
	char process[24];
	const char *process_why;
	struct doctor_finding finding[DOCTOR_FINDINGS_MAX];
	unsigned findings;
};

/* ---- doctor.c -------------------------------------------------------------------------------- */

/*
 * Adds a finding of the check that runs. `fix` NULL: none, or writes follow. Returns it, for
 * found_write() and fix_set(); never NULL: beyond the room it is the last one.
 */
__attribute__((format(printf, 5, 6))) struct doctor_finding *found(struct doctor *d,
	enum doctor_state state, const char *where, const char *fix, const char *format, ...);
/* The same with a fix that is formatted. */
__attribute__((format(printf, 2, 3))) void fix_set(
	struct doctor_finding *finding, const char *format, ...);
/* A file of /proc or /sys and the value that mends the finding. */
void found_write(struct doctor_finding *finding, const char *file, const char *value);

/* ---- host.c ---------------------------------------------------------------------------------- */

/* Why a file has no value: it is not there, or it cannot be read. */
enum host_read { HOST_READ, HOST_ABSENT, HOST_UNREADABLE };

/* Reads the first line of a file to another buffer. Absent only if its folder is there. */
enum host_read host_text(const struct doctor *d, const char *path, char *ret, size_t bytes);
/* Reads a whole number; text that is none is unreadable. */
enum host_read host_number(const struct doctor *d, const char *path, int64_t *ret);
/* Reads a list of cores. */
enum host_read host_cores(const struct doctor *d, const char *path, cpu_set_t *ret);
/* Adds the unknown or absent finding that fits `why`; false for HOST_READ. */
bool host_not_read(struct doctor *d, enum host_read why, const char *path);

/* Sets of cores, such as "2-5,8". False: the text is none; then *ret has some of it. */
bool cores_parse(const char *text, cpu_set_t *ret);
const char *cores_text(const cpu_set_t *cores, char *ret, size_t bytes);
/* Ignores numbers that no core has. */
void cores_add(cpu_set_t *cores, int64_t core);
/* Returns the cores of `a` that `b` has not. */
cpu_set_t cores_without(const cpu_set_t *a, const cpu_set_t *b);

/* Paths that match a pattern, sorted, without the root; freed by host_paths_free(). */
struct host_paths {
	size_t count;
	char **path;
};
struct host_paths host_glob(const struct doctor *d, const char *pattern);
void host_paths_free(struct host_paths *paths);
/* Is there a path that matches? */
bool host_has(const struct doctor *d, const char *pattern);

/*
 * Starts a program of this installation, from the folder of the running one, of the build folder or
 * of $PATH, and reads what it prints. Returns its exit status; -ENOENT: it is not there, or cannot
 * be started (what the loader printed is in `ret`); -ETIME: it has not ended in HOST_RUN_S and was
 * killed; -EINTR: another signal ended it; or another -errno.
 */
#define HOST_RUN_S 60
int host_run(char *const *arguments, char *ret, size_t bytes);

/* ---- the checks, by file --------------------------------------------------------------------- */

/* machine.c */
void check_isolation(struct doctor *d);
void check_interrupts(struct doctor *d);
void check_governor(struct doctor *d);
void check_c_states(struct doctor *d);
void check_thp(struct doctor *d);
void check_numa_balancing(struct doctor *d);
void check_swappiness(struct doctor *d);
void check_clock_source(struct doctor *d);
/* memory.c */
void check_plan(struct doctor *d);
void check_huge_pages(struct doctor *d);
void check_memory(struct doctor *d);
void check_limits(struct doctor *d);
void check_cgroup(struct doctor *d);
/* nic.c */
void check_software_nic(struct doctor *d);
void check_links(struct doctor *d);
void check_gids(struct doctor *d);
void check_mtu(struct doctor *d);
void check_traffic_class(struct doctor *d);
void check_lossless(struct doctor *d);
/* network.c */
void check_address(struct doctor *d);
void check_keys(struct doctor *d);
void check_seeds(struct doctor *d);
void check_ports(struct doctor *d);
void check_time(struct doctor *d);
void check_peers(struct doctor *d);
/* disk.c */
void check_disk(struct doctor *d);
/* engine.c */
void check_settings(struct doctor *d);
void check_engine(struct doctor *d);
void check_versions(struct doctor *d);
void check_differences(struct doctor *d);

#endif
