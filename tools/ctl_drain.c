/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl drain and undrain: copies the pages of this host to others before it is stopped. The
 * engine gets a signal with the number of seconds; its report tells how far it is. One thread.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/common.h"
#include "tools/ctl.h"

#define LOOK_NS 200000000L

static json_object *report_of(const struct ctl_run *ctl)
{
	struct pc *pc = open_session(ctl->socket, ctl->name_space);
	json_object *report = engine_report(pc);

	pc_close(pc);
	return report;
}

static void signal_send(json_object *report, unsigned seconds)
{
	pid_t pid = (pid_t)json_number(report, "pid");
	bool knows = json_get(report, "drain");
	const union sigval value = {.sival_int = (int)seconds};

	if (pid <= 1 || !is_named(pid, "peercache-engin"))
		die("pid %d is no engine here; run this where the engine runs, not in another container",
			(int)pid);
	if (!knows) /* it would end from the signal */
		die("the engine is of a version without drain; restart it with this one");
	if (sigqueue(pid, SIGUSR1, value) < 0)
		die("cannot signal the engine (pid %d): %s", (int)pid, strerror(errno));
}

static void progress_print(const struct ctl_run *ctl, json_object *drain, const char *end)
{
	if (!ctl->json)
		fprintf(stderr, "%lld of %lld pages copied (%.1f MiB), %lld left%s",
			(long long)json_number(drain, "copied"),
			(long long)json_number(drain, "pages"),
			(double)json_number(drain, "copied_bytes") / (1 << 20),
			(long long)json_number(drain, "left"), end);
}

/* The first Ctrl-C tells what a second one does. */
static void on_interrupt(int number)
{
	static const char
		first[] = "\nCtrl-C again leaves at once; the engine goes on with the drain\n",
		second[] = "\nthe engine goes on with the drain; peercachectl undrain ends it\n";
	static volatile sig_atomic_t again;

	if (write(STDERR_FILENO, again ? second : first,
		    again ? sizeof(second) - 1 : sizeof(first) - 1) < 0 ||
		again)
		_exit(128 + number);
	again = 1;
}

int ctl_drain(struct ctl_run *ctl)
{
	struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
	const struct timespec pause = {.tv_nsec = LOOK_NS};
	json_object *report = report_of(ctl), *drain = NULL;
	unsigned looks = 0;
	bool begun = false;
	int64_t unfit;

	if (ctl->drain_pid && json_number(report, "pid") != (int64_t)ctl->drain_pid)
		die("the engine that serves this socket has pid %lld, not %llu: give the socket of that one (--socket)",
			(long long)json_number(report, "pid"), (unsigned long long)ctl->drain_pid);
	sigaction(SIGINT, &action, NULL);
	signal_send(report, (unsigned)ctl->drain_seconds);
	do {
		json_object_put(report);
		nanosleep(&pause, NULL);
		report = report_of(ctl);
		drain = json_get(report, "drain");
		progress_print(ctl, drain, "\r");
		begun |= *json_text(drain, "state");
	} while ((!strcmp(json_text(drain, "state"), "running") || !begun) &&
		 ++looks < (ctl->drain_seconds + 30) * (1000000000u / LOOK_NS));
	if (strcmp(json_text(drain, "state"), "done"))
		die("the drain has not come to its end: peercachectl undrain ended it, the engine was restarted, or it hangs; drain it again before it is stopped");
	unfit = json_number(drain, "unfit");
	progress_print(ctl, drain, "\n");
	if (ctl->json)
		print_json(json_object_get(drain), stdout);
	else if (unfit)
		printf("%lld pages have no room on other hosts, or not in time: they are lost when this host stops\n",
			(long long)unfit);
	else
		printf("other hosts have the pages of this one; it can be stopped\n");
	json_object_put(report);
	return unfit != 0;
}

int ctl_undrain(struct ctl_run *ctl)
{
	json_object *report = report_of(ctl);

	signal_send(report, 0);
	json_object_put(report);
	return 0;
}
