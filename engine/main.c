/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercache-engine: reads the settings and the topology, makes the plan (which core and memory each
 * rail gets), starts the control plane, and frees everything in reverse order. The main thread
 * becomes the control plane's thread.
 *
 * Exit codes: 0 stopped in order, or --help, --version, --plan, --check succeeded; 1 could not
 * start or serve; 2 wrong usage or settings.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "config/log.h"
#include "config/ports.h"
#include "config/settings.h"
#include "config/stdout.h"
#include "config/unit.h"
#include "config/version.h"
#include "dv/experiment.h"
#include "dv/setup.h"
#include "engine/control/base/control.h"
#include "engine/control/control_open.h"
#include "engine/control/net/address.h"
#include "engine/control/net/secure.h"
#include "engine/control/pages/sizes.h"
#include "engine/keeper/service.h"
#include "numa/clock.h"
#include "numa/plan.h"
#include "numa/topology.h"

enum { EXIT_OK, EXIT_FAILED, EXIT_USAGE };

struct arguments {
	bool plan_only;  /* --plan */
	bool check_only; /* --check */
	int ready_fd;    /* file descriptor of --ready-fd; -1: none */
	char *card;      /* --card; NULL: none */
	uint64_t tries;  /* --tries */
};

/* The control plane that the signal handler stops. NULL: it has stopped, and is being closed. */
static struct control *volatile running;
#define DRAIN_SECONDS 60              /* of a SIGUSR1 without a value */
static volatile sig_atomic_t signals; /* number of stop signals received */

static const char usage[] =
	"Usage: peercache-engine [--config FILE] [--set section.key=value]...\n"
	"Keeps this host's KV pages in memory and lets every other host read them.\n"
	"\n"
	"Options:\n"
	"  -c, --config FILE            read settings from FILE\n"
	"  -s, --set section.key=value  one setting, overrides FILE; may be repeated\n"
	"      --plan                   print cores, memory, huge pages and ports, and exit\n"
	"      --check                  check what can be known before the start and exit\n"
	"      --user NAME              for --check: the user that will run the engine (default: that\n"
	"                               of " UNIT_NAME ", if this host has it)\n"
	"      --card NIC[,NIC]         try whether a port, or two, are as this program assumes; prints a\n"
	"                               JSON document for each experiment, and exits\n"
	"      --tries N                of each experiment of --card that counts (default 1000000)\n"
	"      --ready-fd N             write one byte to file descriptor N once it serves\n"
	"  -h, --help                   print this text and all settings\n"
	"  -V, --version                print the version\n"
	"\n"
	"Signals:\n"
	"  SIGTERM, SIGINT  stop in order; a second one ends the engine at once\n"
	"  SIGUSR1          copy the pages to other hosts, as peercachectl drain\n"
	"  SIGHUP           reads cluster.psk_file or cluster.tls_dir again\n"
	"\n"
	"Exit status:\n"
	"  0  stopped in order\n"
	"  1  could not start or serve\n"
	"  2  wrong usage or settings, or the output could not be written\n"
	"\n";

/* Printed after the settings. */
static const char examples[] =
	"\n"
	"Examples:\n"
	"  One engine with a software NIC, to try it out:\n"
	"    $ peercache-engine --set engine.socket=/tmp/a.sock --set engine.pool_bytes=64MiB\n"
	"\n"
	"  Print which cores, memory and ports an engine with these settings would use:\n"
	"    $ peercache-engine -c /etc/peercache/engine.conf --plan\n"
	"\n"
	"  Two rails, in a cluster:\n"
	"    $ peercache-engine -s rail.devices=mlx5_0,mlx5_1 -s cluster.address=10.0.0.1 \\\n"
	"    > -s cluster.seeds=10.0.0.1:31998,10.0.0.2:31998\n";

/* ---- arguments ------------------------------------------------------------------------------- */

enum { OPTION_PLAN = 256, OPTION_CHECK, OPTION_USER, OPTION_READY_FD, OPTION_CARD, OPTION_TRIES };

static const struct option long_options[] = {
	{"config", required_argument, NULL, 'c'},
	{"set", required_argument, NULL, 's'},
	{"plan", no_argument, NULL, OPTION_PLAN},
	{"check", no_argument, NULL, OPTION_CHECK},
	{"user", required_argument, NULL, OPTION_USER},
	{"ready-fd", required_argument, NULL, OPTION_READY_FD},
	{"card", required_argument, NULL, OPTION_CARD},
	{"tries", required_argument, NULL, OPTION_TRIES},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, 'V'},
	{0},
};

static int fd_parse(const char *text, int *ret_fd)
{
	char *end;
	long fd;

	errno = 0;
	fd = strtol(text, &end, 10);
	if (errno || end == text || *end || fd < 0 || fd > 1 << 20) {
		char why[128];

		snprintf(why, sizeof(why),
			"--ready-fd %.40s: not a file descriptor; give the number of an open one",
			text);
		log_plain(LOG_ERROR, why);
		return -EINVAL;
	}
	*ret_fd = (int)fd;
	return 0;
}

static void help(void)
{
	fputs(usage, stdout);
	settings_help(stdout);
	fputs(examples, stdout);
}

static int refused(const char *text)
{
	log_plain(LOG_ERROR, text);
	return EXIT_USAGE;
}

/*
 * Reads the command line in two passes: first the settings files, then --set, so that --set
 * overrides a file that comes after it. Returns -1 to go on, or the exit code.
 */
static int arguments_read(int argc, char **argv, struct arguments *args, struct settings *settings)
{
	char err[SETTINGS_ERR_BYTES] = "";
	int option;

	while ((option = getopt_long(argc, argv, "c:s:hV", long_options, NULL)) != -1) {
		switch (option) {
		case 'c':
			if (settings_load(settings, optarg, err, sizeof(err)) < 0)
				return refused(err);
			break;
		case OPTION_PLAN: args->plan_only = true; break;
		case OPTION_CHECK: args->check_only = true; break;
		case OPTION_USER: break; /* check_as_read() */
		case OPTION_CARD: args->card = optarg; break;
		case OPTION_TRIES:
			args->tries = strtoull(optarg, NULL, 10);
			if (!args->tries)
				return refused("--tries: give a number from 1 on");
			break;
		case OPTION_READY_FD:
			if (fd_parse(optarg, &args->ready_fd) < 0)
				return EXIT_USAGE;
			break;
		case 'h': help(); return EXIT_OK;
		case 'V': puts("peercache-engine " PEERCACHE_VERSION); return EXIT_OK;
		case 's': break;
		default: return refused("try peercache-engine --help");
		}
	}
	if (optind < argc)
		return refused(
			"peercache-engine takes options only, no other arguments; try peercache-engine --help");
	optind = 1;
	while ((option = getopt_long(argc, argv, "c:s:hV", long_options, NULL)) != -1)
		if (option == 's' && settings_override(settings, optarg, err, sizeof(err)) < 0)
			return refused(err);
	if (settings_check(settings, err, sizeof(err)) < 0)
		return refused(err);
	return -1;
}

/* ---- surroundings ---------------------------------------------------------------------------- */

/*
 * The first signal stops the engine in order. The second one exits at once; the kernel frees all
 * resources.
 */
static void on_signal(int number)
{
	if (signals++)
		_exit(128 + number);
	if (running)
		control_stop(running);
}

/* From peercachectl drain and undrain; the value is the number of seconds. */
static void on_drain(int number, siginfo_t *info, void *context)
{
	int seconds = info->si_code == SI_QUEUE ? info->si_value.sival_int : DRAIN_SECONDS;

	(void)number, (void)context;
	if (running)
		control_drain(running, seconds > 0 ? (unsigned)seconds : 0);
}

static void on_hangup(int number)
{
	(void)number;
	if (running)
		secure_reload(running);
}

static void signals_install(struct control *control)
{
	struct sigaction stop = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	struct sigaction drain = {.sa_sigaction = on_drain, .sa_flags = SA_RESTART | SA_SIGINFO};
	struct sigaction again = {.sa_handler = on_hangup, .sa_flags = SA_RESTART};

	running = control;
	sigemptyset(&stop.sa_mask);
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGINT, &stop, NULL);
	sigemptyset(&drain.sa_mask);
	sigaction(SIGUSR1, &drain, NULL);
	sigaction(SIGHUP, &again, NULL);
}

/*
 * Raises the soft limits of locked memory (pinned pools), open files (one socket per client), file
 * sizes (pools and disks) and threads to the hard limits, which needs no privilege.
 */
static void limits_raise(void)
{
	const struct {
		int which;
		const char *name;
	} limits[] = {{RLIMIT_MEMLOCK, "locked memory"}, {RLIMIT_NOFILE, "open files"},
		{RLIMIT_FSIZE, "file sizes"}, {RLIMIT_NPROC, "threads"}};

	for (unsigned i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		struct rlimit l;

		if (getrlimit((__rlimit_resource_t)limits[i].which, &l) < 0)
			continue;
		l.rlim_cur = l.rlim_max;
		if (setrlimit((__rlimit_resource_t)limits[i].which, &l) < 0)
			log_warn(
				"raising the soft limit of %s to the hard limit: %s; the engine runs with the lower limit",
				limits[i].name, strerror(errno));
	}
}

/* Tells the terminal, --ready-fd and the service manager that the engine serves clients. */
static void tell_ready(const struct control *control, const struct arguments *args)
{
	const struct settings *s = control->settings;
	char line[2 * NAME_BYTES_MAX + 160];

	if (control->rails)
		snprintf(line, sizeof(line), "ready: %s, %u rail%s, clients at %s", control->name,
			control->rails, control->rails == 1 ? "" : "s", s->engine_socket);
	else
		snprintf(line, sizeof(line),
			"ready: %s, a seed only (rail.devices = none), peercachectl at %s",
			control->name, s->engine_socket);
	if (s->log_format == LOG_JSON)
		log_info("%s", line);
	else
		log_plain(LOG_INFO, line);
	if (args->ready_fd >= 0) {
		if (write(args->ready_fd, "", 1) != 1)
			log_warn("--ready-fd: writing the ready byte to file descriptor %d: %s",
				args->ready_fd, strerror(errno));
		close(args->ready_fd);
	}
	service_tell("READY=1");
}

/* ---- the engine ------------------------------------------------------------------------------ */

/* Runs the engine until it is stopped. Returns the exit code. */
static int serve(
	const struct settings *settings, const struct plan *plan, const struct arguments *args)
{
	struct control *control;
	int rc = control_open(settings, plan, &control);

	if (rc < 0)
		return EXIT_FAILED;
	service_stored_drop();
	signals_install(control);
	tell_ready(control, args);
	rc = control_run(control);
	service_tell("STOPPING=1");
	if (rc == -ETIMEDOUT) {
		log_flush();
		/* a poll core did not stop and still uses what control_close() would free */
		_exit(EXIT_FAILED);
	}
	running = NULL;
	control_close(control);
	return rc < 0 ? EXIT_FAILED : EXIT_OK;
}

static int plan_and_serve(const struct settings *settings, const struct arguments *args)
{
	struct plan_claims claims = {.count = 0};
	struct topology *topology;
	struct plan plan;
	int rc, code = EXIT_FAILED;

	if (topology_open(&topology) < 0)
		return EXIT_FAILED;
	rc = args->plan_only ? plan_make(topology, settings, &plan)
			     : plan_claim(topology, settings, &plan, &claims);
	if (rc == 0 && args->plan_only) {
		plan_print(&plan, stdout);
		memory_print(settings, &plan, stdout);
		ports_print(settings, stdout);
		code = EXIT_OK;
	} else if (rc == 0) {
		if (plan.note[0])
			log_warn("%s", plan.note);
		code = serve(settings, &plan, args);
	}
	plan_release(&claims);
	topology_close(topology);
	return code;
}

/* ---- --check --------------------------------------------------------------------------------- */

/* The user for which --check answers. */
struct check_as {
	const char *user; /* --user, or that of the unit; NULL: the caller */
	struct unit unit; /* of that user; empty: none */
	bool allowed;     /* this process is that user now */
	bool silent;      /* systemctl has not told the user: files are not examined */
};

/*
 * Becomes the user that will run the engine, if this process may, so that files are seen as it sees
 * them: also those of the settings, which are read next. Returns -1 to go on, or the exit code.
 */
static int check_as_read(int argc, char **argv, struct check_as *ret)
{
	bool check_only = false;
	char why[128];
	int option, rc = 0;

	*ret = (struct check_as){.allowed = true};
	opterr = 0; /* arguments_read() says what is wrong */
	while ((option = getopt_long(argc, argv, "c:s:hV", long_options, NULL)) != -1) {
		check_only |= option == OPTION_CHECK;
		ret->user = option == OPTION_USER ? optarg : ret->user;
	}
	opterr = optind = 1;
	if (!check_only)
		return ret->user ? refused("--user goes with --check") : -1;
	rc = unit_read(&ret->unit);
	ret->silent = rc == -ETIMEDOUT && !ret->user;
	if (rc < 0 || (ret->user && strcmp(ret->user, ret->unit.user)))
		ret->unit = (struct unit){.pid = 0};
	else
		ret->user = ret->unit.user;
	rc = 0;
	if (ret->user)
		rc = user_become(ret->user);
	ret->allowed = rc == 0;
	if (rc == 0 || rc == -EPERM)
		return -1;
	snprintf(why, sizeof(why), "user %.40s: %s; give --user NAME another one", ret->user,
		rc == -ENOENT ? "this host has no user of that name" : strerror(-rc));
	return refused(why);
}

/* What cannot be checked, or needs not: bits of enum control_unchecked. */
static unsigned check_left_out(const struct check_as *as, const struct settings *settings)
{
	char folder[sizeof(settings->engine_socket)];
	char *slash;

	if (!as->allowed || as->silent)
		return UNCHECKED_FILES;
	snprintf(folder, sizeof(folder), "%s", settings->engine_socket);
	slash = strrchr(folder, '/');
	if (!slash)
		return 0;
	*slash = '\0';
	return unit_makes(&as->unit, folder) ? UNCHECKED_SOCKET : 0;
}

/*
 * What can be known without starting, also beside an engine that serves with the same settings.
 * Returns the exit code.
 */
static int check(struct settings *settings, const struct check_as *as)
{
	struct plan plan = {.rails = 1};
	struct topology *topology;
	int planned, rc;

	if (topology_open(&topology) < 0)
		return EXIT_FAILED;
	/* an address that is not found is one of the things that are known to be wrong */
	(void)address_settle(settings);
	planned = plan_make(topology, settings, &plan);
	rc = control_check(settings, &plan, &as->unit, check_left_out(as, settings));
	topology_close(topology);
	/* -EBUSY: an engine that serves has claimed a core that rail.cores names */
	if (rc < 0 || (planned < 0 && planned != -EBUSY))
		return EXIT_USAGE;
	printf("the settings are valid%s%s\n", as->user ? " for user " : "",
		as->user ? as->user : "");
	if (!as->allowed)
		puts("files and folders were not checked: run this as root or as that user, or with --user and the one that will start the engine");
	if (as->silent)
		printf("systemctl has not answered in %s s, so the user of the engine is not known: files and folders were not checked; give --user NAME\n",
			UNIT_ANSWER_S);
	puts("peercachectl doctor examines the host.\n"
	     "only the start can tell: whether engine.socket, cluster.port, metrics.port, the cores and disk.paths are free;\n"
	     "whether memory, huge pages, locked memory and the limits of cgroup and process suffice; whether the NICs open;\n"
	     "and whether seeds and etcd answer");
	return EXIT_OK;
}

/* ---- --card ---------------------------------------------------------------------------------- */

#define CARD_TRIES 1000000
#define CARD_SECONDS 10

static int card(const struct settings *s, const struct arguments *args)
{
	char *other = strchr(args->card, ',');
	const struct dv_options end = {.name = args->card,
		.gid_index = (int)s->rail_gid_index,
		.ack_timeout = (uint8_t)s->rail_ack_timeout,
		.traffic_class = (int)s->rail_traffic_class,
		.service_level = (uint8_t)s->rail_service_level,
		.pkey_index = (uint16_t)s->rail_pkey_index,
		.one_flow = !s->rail_flow_labels};
	struct dv_experiment options = {.end = {end, end},
		.tries = args->tries ? args->tries : CARD_TRIES,
		.seconds = CARD_SECONDS};

	if (other) {
		*other++ = '\0';
		options.end[1].name = other;
	}
	limits_raise();
	if (dv_experiment_run(&options, stdout) == 0)
		return EXIT_OK;
	log_error("--card %s: %s", args->card, dv_error());
	return EXIT_FAILED;
}

int main(int argc, char **argv)
{
	struct arguments args = {.ready_fd = -1};
	struct settings settings;
	struct check_as as;
	int code;

	atexit(stdout_check);
	if (settings_default(&settings) < 0)
		return EXIT_FAILED;
	code = check_as_read(argc, argv, &as);
	if (code < 0)
		code = arguments_read(argc, argv, &args, &settings);
	if (code >= 0)
		return code;
	log_level_set((enum log_level)settings.log_level);
	log_format_set((enum log_format)settings.log_format);
	if (args.check_only)
		return check(&settings, &as);
	if (args.card)
		return card(&settings, &args);
	signal(SIGPIPE, SIG_IGN);
	/* before it serves it has nothing to read again; the default action would end it */
	signal(SIGHUP, SIG_IGN);
	/* a file that becomes too large is an error of the call, with a message, not an end */
	signal(SIGXFSZ, SIG_IGN);
	service_open();
	clock_start();
	limits_raise();
	code = EXIT_FAILED;
	if (args.plan_only || address_settle(&settings) == 0)
		code = plan_and_serve(&settings, &args);
	log_flush();
	return code;
}
