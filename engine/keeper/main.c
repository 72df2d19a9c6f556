/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercache-keeper: reads the command line and runs the keeper. Main thread only.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config/log.h"
#include "config/stdout.h"
#include "config/version.h"
#include "engine/keeper/keeper.h"

enum { EXIT_USAGE = 2 };

#define TIMEOUT_MAX_S 86400u
#define STOP_TIMEOUT_S 90u /* as TimeoutStopSec of systemd */

static const char usage[] =
	"Usage: peercache-keeper --socket PATH [OPTION]... [--] ENGINE [ARGUMENT]...\n"
	"Runs an engine, starts it again whenever it ends, and owns the socket of its clients, so\n"
	"that a client which connects while no engine runs waits for the next one.\n"
	"\n"
	"ENGINE is the program peercache-engine; its arguments follow, and --set\n"
	"engine.socket=PATH is added to them. The keeper speaks the protocol of systemd's service\n"
	"manager: it takes READY=1, FDSTORE=1 and FDSTOREREMOVE=1 with FDNAME, and BARRIER=1 on\n"
	"NOTIFY_SOCKET, and passes the socket and the stored file descriptors (at most 640) by\n"
	"LISTEN_FDS, LISTEN_PID and LISTEN_FDNAMES.\n"
	"\n"
	"The pause before a restart is 0.1 s. It doubles, up to 30 s, after each run in which the\n"
	"engine was not ready. An engine that exits with status 0 is restarted too. An engine that\n"
	"has never been ready, or that refuses its settings (status 2), is not: the keeper ends.\n"
	"\n"
	"Options:\n"
	"      --socket PATH      the socket of clients, engine.socket of the engine; at most 100\n"
	"                         bytes\n"
	"      --clients FILE     end the engine when no process holds a lock on FILE any more\n"
	"                         (flock(2), shared); without it the engine runs until a signal\n"
	"      --stop-timeout S   kill an engine that has not ended S seconds after SIGTERM (90)\n"
	"      --ready-fd N       write one byte to file descriptor N once the engine serves\n"
	"      --lock-fd N        file descriptor N holds the lock on PATH.keeper already\n"
	"  -h, --help             print this text\n"
	"  -V, --version          print the version\n"
	"\n"
	"Signals:\n"
	"  SIGTERM, SIGINT  end the engine in order, then the keeper; a second one ends the engine\n"
	"                   at once\n"
	"  SIGHUP           sent on to the engine, which reads its keys again\n"
	"\n"
	"Files:\n"
	"  PATH.keeper  locked while the keeper runs, so that a socket has one keeper\n"
	"  PATH.notify  the socket of NOTIFY_SOCKET\n"
	"\n"
	"Exit status:\n"
	"  0    ended by a signal, or after the last client\n"
	"  1    could not start\n"
	"  2    wrong usage, or the engine refuses its settings\n"
	"  127  the engine's program cannot be run\n"
	"  N    the status of an engine that has never been ready; 128 + the number of a signal\n"
	"\n"
	"Examples:\n"
	"  Keep an engine running with a software NIC, to try it out:\n"
	"    $ peercache-keeper --socket /tmp/a.sock peercache-engine \\\n"
	"    > --set engine.pool_bytes=64MiB\n"
	"\n"
	"  Restart its engine, for a new version of the program:\n"
	"    $ kill -TERM $(cat /tmp/a.sock.pid)\n"
	"\n"
	"  Keep an engine with a settings file until the last client has ended:\n"
	"    $ peercache-keeper --socket /run/peercache/engine.sock \\\n"
	"    > --clients /run/peercache/engine.sock.clients \\\n"
	"    > -- peercache-engine --config /etc/peercache/engine.conf\n";

enum { OPTION_SOCKET = 256, OPTION_CLIENTS, OPTION_LOCK_FD, OPTION_READY_FD, OPTION_STOP };

static const struct option long_options[] = {
	{"socket", required_argument, NULL, OPTION_SOCKET},
	{"clients", required_argument, NULL, OPTION_CLIENTS},
	{"lock-fd", required_argument, NULL, OPTION_LOCK_FD},
	{"ready-fd", required_argument, NULL, OPTION_READY_FD},
	{"stop-timeout", required_argument, NULL, OPTION_STOP},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'V'},
	{0},
};

/* Reads a number from `min` to `max`. Returns false after printing what is wrong. */
static bool option_number(const char *option, const char *text, long min, long max, int *ret)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (errno || end == text || *end || value < min || value > max) {
		char why[160];

		snprintf(why, sizeof(why), "--%s %.60s: not valid; give a number from %ld to %ld",
			option, text, min, max);
		log_plain(LOG_ERROR, why);
		return false;
	}
	*ret = (int)value;
	return true;
}

/* Reads the command line. Returns -1 to go on, or the exit status. */
static int options_read(int argc, char **argv, struct keeper_options *o)
{
	int option, seconds = 0;

	/* '+': options end at the program, because the options behind it are the engine's */
	while ((option = getopt_long(argc, argv, "+hV", long_options, NULL)) != -1) {
		bool good = true;

		switch (option) {
		case OPTION_SOCKET: o->socket = optarg; break;
		case OPTION_CLIENTS: o->clients = optarg; break;
		case OPTION_LOCK_FD:
			good = option_number("lock-fd", optarg, 3, 1 << 20, &o->lock_fd);
			break;
		case OPTION_READY_FD:
			good = option_number("ready-fd", optarg, 0, 1 << 20, &o->ready_fd);
			break;
		case OPTION_STOP:
			good = option_number("stop-timeout", optarg, 1, TIMEOUT_MAX_S, &seconds);
			o->stop_timeout_s = (unsigned)seconds;
			break;
		case 'h': fputs(usage, stdout); return EXIT_SUCCESS;
		case 'V': puts("peercache-keeper " PEERCACHE_VERSION); return EXIT_SUCCESS;
		default: log_plain(LOG_ERROR, "try peercache-keeper --help"); return EXIT_USAGE;
		}
		if (!good)
			return EXIT_USAGE;
	}
	if (!o->socket || !*o->socket || optind == argc) {
		log_plain(LOG_ERROR,
			"peercache-keeper needs --socket PATH and the engine's program; try peercache-keeper --help");
		return EXIT_USAGE;
	}
	o->command = argv + optind;
	o->words = (unsigned)(argc - optind);
	return -1;
}

/*
 * Makes all inherited descriptors close-on-exec, so that an engine gets only what it is passed:
 * with a copy of the lock of <socket>.keeper it would hold that lock after the keeper's end.
 */
static void descriptors_close_on_exec(void)
{
#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4u
#endif
	if (syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) == 0)
		return;
	/* Linux before 5.11 */
	for (int fd = 3; fd < 1024; fd++)
		(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/*
 * An engine's start needs three numbers for each stored descriptor at a time. The engine would
 * raise this limit for itself, too.
 */
static void descriptors_allow(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv)
{
	struct keeper_options options = {
		.lock_fd = -1, .ready_fd = -1, .stop_timeout_s = STOP_TIMEOUT_S};
	static struct keeper keeper;
	int code;

	atexit(stdout_check);
	code = options_read(argc, argv, &options);
	if (code >= 0)
		return code;
	descriptors_close_on_exec();
	descriptors_allow();
	code = keeper_open(&keeper, &options) < 0 ? EXIT_FAILURE : keeper_run(&keeper);
	keeper_close(&keeper);
	log_flush();
	return code;
}
