/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl restart: ends the engine in order and waits until the process that started it has
 * started the next one, which has the pages. An engine of another version, which gives no session,
 * is found by its socket: so the program that replaced the engine's can restart it. One thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "config/text_fit.h"
#include "engine/client/constants.h"
#include "tools/common.h"
#include "tools/ctl.h"

/* the keeper's pipe is the second descriptor that a keeper passes: keeper.c */
#define KEPT "LISTEN_FDNAMES=clients:keeper"
#define NEVER_KEPT                                                                                 \
	"neither peercache-keeper nor a unit with FileDescriptorStoreMax started it, so its pages would be lost"
#define LOOK_NS 20000000 /* time between two looks for the next engine */

/*
 * The report of the engine that serves now; NULL: none does, *ret_error is that of pc_open(). The
 * caller frees it.
 */
static json_object *report_now(const struct ctl_run *ctl, int *ret_error)
{
	json_object *report;
	struct pc *pc;

	*ret_error = ctl_open(ctl, &pc);
	if (*ret_error)
		return NULL;
	report = engine_report(pc);
	pc_close(pc);
	return report;
}

/* The process that listens on the engine's socket: each engine calls listen(). 0: not known. */
static pid_t listener_pid(const struct ctl_run *ctl)
{
	const char *path = ctl->socket ? ctl->socket : getenv("PEERCACHE_SOCKET");
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct ucred peer = {.pid = 0};
	socklen_t bytes = sizeof(peer);

	if (fd < 0)
		return 0;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s",
		path && *path ? path : SOCKET_DEFAULT);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
		peer.pid = 0;
	close(fd);
	return peer.pid;
}

/* Is the process that is seen here under this number one of that program? At most 15 characters. */
bool is_named(pid_t pid, const char *program)
{
	char path[64], name[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	file = fopen(path, "r");
	if (!file)
		return false;
	if (!fgets(name, sizeof(name), file))
		name[0] = '\0';
	fclose(file);
	return !strncmp(name, program, strlen(program));
}

/*
 * Is the process that the engine's environment calls its keeper not its parent any more? False if
 * the parent is not seen: a keeper in another container.
 */
static bool keeper_gone(pid_t pid)
{
	char path[64], text[512] = "", *end;
	int parent = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "r");
	if (file && fgets(text, sizeof(text), file) && (end = strrchr(text, ')')))
		(void)sscanf(end + 1, " %*c %d", &parent);
	if (file)
		fclose(file);
	return parent > 0 && !is_named(parent, "peercache-keepe");
}

/*
 * Why nothing stores the memory of that engine; NULL: its keeper or systemd does. Its environment
 * tells, as it was at the start; NULL, too, if this process may not read it: then it may not end
 * the engine either.
 */
static const char *alone_why(pid_t pid)
{
	char path[64], *text = NULL;
	bool read = false, stored = false, kept = false;
	size_t bytes = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	file = fopen(path, "r");
	while (file && getdelim(&text, &bytes, '\0', file) >= 0) {
		read = true;
		stored |= !strncmp(text, "FDSTORE=", 8) && strtol(text + 8, NULL, 10) > 0;
		kept |= !strncmp(text, KEPT, strlen(KEPT));
	}
	free(text);
	if (file)
		fclose(file);
	if (kept && keeper_gone(pid))
		return "its keeper has ended, so its pages would be lost and nothing would start the next one; when that suits, end it with kill and start peercache-keeper again";
	return read && !stored ? NEVER_KEPT : NULL;
}

/*
 * What is seen of an engine of another version, which gives no report: its process and, as "seen",
 * pc_error() of pc_open(). The caller frees it.
 */
static json_object *report_from_outside(const struct ctl_run *ctl)
{
	json_object *report = json_object_new_object();

	add_number(report, "pid", (uint64_t)listener_pid(ctl));
	add_text(report, "seen", pc_error());
	return report;
}

/* On stderr, for --json has it in its document. */
static void seen_print(const char *which, json_object *report)
{
	if (*json_text(report, "seen"))
		fprintf(stderr, "peercachectl: %s (pid %d) gives no report: %s\n", which,
			(int)json_number(report, "pid"), json_text(report, "seen"));
}

/* The engine was left running: prints why. Returns the exit status. */
static int left_running(const struct ctl_run *ctl, const char *why)
{
	json_object *o;

	fprintf(stderr, "peercachectl: %s\n", why);
	if (!ctl->json)
		return 1;
	o = json_object_new_object();
	add_text(o, "error", why);
	print_json(o, stdout);
	return 1;
}

/* Ends the engine of the report. Returns 0, or 1 after printing why it was left running. */
static int end(const struct ctl_run *ctl, json_object *report)
{
	pid_t pid = (pid_t)json_number(report, "pid");
	const char *alone = pid > 1 ? alone_why(pid) : NULL;
	char why[256];

	json_object *figures = json_get(report, "figures");

	if (alone || (figures && json_number(figures, "life") == 0)) {
		text_fit(why, sizeof(why), "the engine is left running: %s",
			alone ? alone : NEVER_KEPT);
		return left_running(ctl, why);
	}
	if (pid <= 1 || !is_named(pid, "peercache-engin")) {
		text_fit(why, sizeof(why),
			"the engine is left running: its pid %d is no engine here; run this where the engine runs, not in another container",
			(int)pid);
		return left_running(ctl, why);
	}
	if (kill(pid, SIGTERM) < 0) {
		text_fit(why, sizeof(why), "cannot end the engine (pid %d): %s", (int)pid,
			strerror(errno));
		return left_running(ctl, why);
	}
	return 0;
}

/*
 * The report of another engine than that of `pid`, also of one seen from outside only; NULL: the
 * time is over.
 */
static json_object *next_one(const struct ctl_run *ctl, int64_t pid, uint64_t until_ns)
{
	const struct timespec pause = {.tv_nsec = LOOK_NS};
	int error;

	do {
		json_object *report = report_now(ctl, &error);
		int64_t its;

		if (error == -EPROTO)
			report = report_from_outside(ctl);
		its = json_number(report, "pid");
		if (its > 0 && its != pid)
			return report;
		json_object_put(report);
		nanosleep(&pause, NULL);
	} while (now_ns() < until_ns);
	return NULL;
}

/* Adds a number of a report that has it: one made from outside has none. */
static void add_if_known(json_object *to, const char *as, json_object *of, const char *name)
{
	json_object *number = json_get(of, name);

	if (number)
		add_number(to, as, (uint64_t)json_object_get_int64(number));
}

static void print_restarted(
	const struct ctl_run *ctl, json_object *before, json_object *after, uint64_t ns)
{
	json_object *then = json_get(before, "figures"), *now = json_get(after, "figures");
	const char *seen = json_text(json_get(after, "seen") ? after : before, "seen");
	json_object *o;

	if (!ctl->json) {
		printf("restarted in %.2f s: pid %" PRId64 " -> %" PRId64, (double)ns / 1e9,
			json_number(before, "pid"), json_number(after, "pid"));
		if (now)
			printf(", life %" PRId64 ", %" PRId64,
				json_number(json_get(after, "figures"), "life"),
				json_number(json_get(after, "counters"), "pages_adopted"));
		if (now && then)
			printf(" of %" PRId64, json_number(json_get(before, "figures"), "pages"));
		printf("%s\n", now ? " pages adopted" : "");
		return;
	}
	o = json_object_new_object();
	add_real(o, "seconds", (double)ns / 1e9);
	add_if_known(o, "pid", after, "pid");
	add_if_known(o, "pid_before", before, "pid");
	add_if_known(o, "life", now, "life");
	add_if_known(o, "pages_before", then, "pages");
	add_if_known(o, "pages_adopted", json_get(after, "counters"), "pages_adopted");
	if (*seen)
		add_text(o, "seen", seen);
	print_json(o, stdout);
}

int ctl_restart(struct ctl_run *ctl)
{
	uint64_t began_ns = now_ns();
	json_object *before, *after;
	int status, error;

	before = report_now(ctl, &error);
	if (error == -EPROTO)
		before = report_from_outside(ctl);
	if (!before)
		return ctl_no_answer(ctl, pc_error());
	seen_print("the engine", before);
	status = end(ctl, before);
	if (status == 0) {
		after = next_one(
			ctl, json_number(before, "pid"), began_ns + ctl->restart_ms * 1000000ull);
		seen_print("the next engine", after);
		if (after)
			print_restarted(ctl, before, after, now_ns() - began_ns);
		else
			status = ctl_no_answer(ctl, "it was ended, and no other one serves yet");
		json_object_put(after);
	}
	json_object_put(before);
	return status;
}
