/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doctor: examines this host for an engine with given settings, whether it runs or not. One
 * list of checks; `peercachectl doctor` prints what they find and tools/setup-host applies the
 * writes among the fixes. It changes nothing. One thread.
 *
 * What cannot be read is DOCTOR_UNKNOWN and never DOCTOR_OK.
 */
#ifndef DOCTOR_DOCTOR_H
#define DOCTOR_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/settings.h"

struct json_object;

enum doctor_state {
	DOCTOR_OK,
	DOCTOR_FOUND,   /* something to mend */
	DOCTOR_UNKNOWN, /* could not be examined; the text says why */
	DOCTOR_NONE,    /* the host or the settings lack what is examined */
};

/* One value of a file of /proc or /sys that mends a finding. */
struct doctor_write {
	char *file, *value;
};

struct doctor_finding {
	const char *check; /* name of the check, a line of checks[] */
	enum doctor_state state;
	char where[192]; /* the file, the setting or the host */
	char text[480];
	char *fix; /* what to do, a command line where possible; NULL: nothing */
	struct doctor_write *write;
	unsigned writes;
};

#define DOCTOR_PEERS_MAX 16

struct doctor_options {
	const struct settings *settings; /* settings_check() has accepted them */
	/* the command line that has these settings, "--config FILE --set ...", ends with NULL */
	char *const *arguments;
	const char *root; /* folder with the sys and proc to read; NULL: of this host */
	struct json_object
		*report; /* of the engine that runs with these settings; NULL: none does */
	/* why the engine behind the socket could not be asked; NULL: it was, or none is there */
	const char *unasked;
	const char *user;    /* that will run the engine; NULL: that of the unit, else the caller */
	bool given;          /* the settings were given, not taken from the report */
	const char *library; /* version of the client library */
	const char *peer[DOCTOR_PEERS_MAX]; /* other hosts, "host" or "host:port"; ends with NULL */
	unsigned timeout_ms;                /* for each host to answer */
};

struct doctor;

/*
 * Calls `work` in a child process and reads what that writes to `fd`, as text; what does not fit is
 * dropped. Returns its exit status, 0 if `work` returns; -ETIME: it has not ended within the time
 * and was killed; -EINTR: another signal ended it; or another -errno. Until then SIGCHLD has its
 * default action, so one thread at a time may call it.
 */
int doctor_child(void (*work)(void *context, int fd), void *context, unsigned timeout_ms, char *ret,
	size_t bytes);

/* Runs all checks. NULL: no memory. The caller closes it; the options stay valid until then. */
struct doctor *doctor_run(const struct doctor_options *options);
unsigned doctor_count(const struct doctor *d, enum doctor_state state);
/* The finding at `at`, in the order of the checks; NULL: there are no more. */
const struct doctor_finding *doctor_finding(const struct doctor *d, unsigned at);
const char *doctor_state_name(enum doctor_state state);
/* What a check examines, in one line; NULL: no check has that name. */
const char *doctor_explain(const char *check);
/* Huge pages of 2 MiB that the settings need, on all nodes together. */
uint64_t doctor_huge_pages(const struct doctor *d);
void doctor_close(struct doctor *d);

#endif
