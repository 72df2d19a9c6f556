/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl: prints the state of a running engine, and stores, reads and removes values. This
 * file parses the command line; the commands are in ctl_*.c. One thread.
 */
#include <getopt.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "config/group_limits.h"
#include "tools/common.h"
#include "tools/ctl.h"

static const char help[] =
	"Usage: peercachectl [OPTION]... COMMAND\n"
	"Shows the state of a running engine; stores, fetches and removes values.\n\n"
	"Commands:\n"
	"  status               print the state and the counters of the engine of this host\n"
	"  health               print what is wrong, worst first\n"
	"  top                  show health, rates and latencies every second; Ctrl-C ends it\n"
	"  members              print the members of the cluster that this engine knows: state,\n"
	"                       connections, versions, queue of requests, suspicion\n"
	"  directory            print the engine's shard, the walk over its pages after a change of\n"
	"                       the map, partial sets, and the owners that are behind or suspect\n"
	"  explain KEY          tell why a key is found or not: hash, owners and what each answers,\n"
	"                       the page head at each place that they name, and what a get says\n"
	"  match KEY...         tell which hosts have the pages of these keys, such as those of a\n"
	"                       prompt: how many from the first on, and how many in all\n"
	"  doctor               examine this host for an engine with the settings of --config and\n"
	"                       --set, or of the one that runs: NICs, memory, cores, names, ports,\n"
	"                       disks, limits, versions; each finding with its fix\n"
	"  trial                measure the NICs of this host, or of two, for one report: what our\n"
	"                       code assumes of a card, bytes, latencies, churn; its own --help\n"
	"  drain                copy the pages of this host to others, the most recently used first,\n"
	"                       into room that is free there; then the engine can be stopped\n"
	"  undrain              end that\n"
	"  restart              end the engine in order; its keeper, or systemd, starts the next one\n"
	"                       with the same pages\n"
	"  put KEY FILE         store a file of up to 65520 bytes (\"-\": standard input)\n"
	"  put KEY --string S   store a string\n"
	"  get KEY [-o FILE]    write the value to FILE (default: standard output)\n"
	"  exists KEY...        print whether a member of the cluster has it\n"
	"  prefetch KEY...      bring it into the memory of this host, without waiting\n"
	"  pin KEY...           keep it in the memory of this host for --seconds (default 3600, at\n"
	"                       most 86400), if it is there; engine.pinned_percent bounds pins\n"
	"  unpin KEY...         end that\n"
	"  rm KEY...            remove it from all hosts that can be reached\n"
	"  clear                remove all pages of this host, in memory and on disk, or those of\n"
	"                       one namespace and its ranks (--namespace); with --cluster no host\n"
	"                       finds what was stored before, also one that is down now\n"
	"  quota [SIZE]         print what the groups of namespaces have of the pools of this host\n"
	"                       and their limits; with SIZE or --ttl: set those of --namespace (0:\n"
	"                       none), until another client tells others or the engine ends\n"
	"  keys                 record what the clients of this host ask for, for peercache-bench\n"
	"                       policy: how much memory buys how many hits\n"
	"  keygen FILE          make a file with a new key for cluster.psk_file\n"
	"  tls-example FOLDER CLUSTER NAME...\n"
	"                       make a CA for tests, and a folder for cluster.tls_dir of each engine\n\n"
	"Options:\n"
	"  --socket PATH        the engine's socket (default: $PEERCACHE_SOCKET or built in)\n"
	"  --namespace TEXT     namespace of the keys (default \"peercachectl\"); of clear\n"
	"                       and quota: the part in front of ||, such as \"pc2|model=M|prefix=|tag=\" (default: all)\n"
	"  --namespace-secret-file FILE\n"
	"                       secret of the tenant whose keys they are\n"
	"  --timeout-ms T       deadline of each call in milliseconds (default 5000; of restart\n"
	"                       and clear: 60000)\n"
	"  --string S           put: store this string\n"
	"  --deadline T         drain: end after this time, such as 60s (default 60s)\n"
	"  --pid N              drain: only if the engine has this process id\n"
	"  -o, --output FILE    get: write to this file (default: standard output)\n"
	"  --cluster            clear: of all hosts\n"
	"  --ttl SECONDS        quota: pages of the group are gone after this time\n"
	"  --record FILE        keys: write a new file; a number for each key, nothing of its text\n"
	"  --seconds N          time of pin and keys (default 3600)\n"
	"  --max-bytes SIZE     keys: end before the file is larger (default 1GiB)\n"
	"  --gets               keys: what get asks for; default: exists, which SGLang calls first\n"
	"  --config FILE        doctor: the settings of the engine\n"
	"  --set S.KEY=VALUE    doctor: one setting, overrides FILE; may be repeated\n"
	"  --peer HOST[:PORT]   doctor: can the ports of the engine of HOST be reached from here?\n"
	"                       May be repeated\n"
	"  --user NAME          doctor: the user that will run the engine (default: that of the\n"
	"                       unit peercache-engine.service, if this host has it)\n"
	"  --root DIR           doctor: read sys and proc in DIR, of another host or a test\n"
	"  --once               top: print one picture of 80 columns and 24 lines and end\n"
	"  --json               print one JSON document, with \"version\" and \"json_version\"\n"
	"  --help               print this text; after a command, what is about it\n"
	"  --version            print the version\n\n"
	"Exit status:\n"
	"  0  success\n"
	"  1  a key was not found or not stored\n"
	"  2  wrong usage, no engine, or the output could not be written\n"
	"Exit status of clear --cluster:\n"
	"  0  all hosts of the cluster have taken it; those that are down do before they serve\n"
	"  1  some have not in time: --json names the number; the log of the engine names them\n"
	"Exit status of health:\n"
	"  0  no finding, or only information\n"
	"  1  a warning\n"
	"  2  a critical finding\n"
	"  3  the engine does not answer (top --once, too)\n"
	"Exit status of directory:\n"
	"  0  nothing is left to send to an owner (one whose shard is full refuses entries)\n"
	"  1  entries move, a set is partial, or an owner is behind or suspect\n"
	"  3  the engine does not answer\n"
	"Exit status of explain:\n"
	"  0  a reader of this host finds the key\n"
	"  1  it does not: absent, evicted, or the holder is dead\n"
	"  3  the engine does not answer\n"
	"  4  not known: an owner or the holder could not be asked; readers take it as a miss\n"
	"Exit status of match:\n"
	"  0  a host has the first key\n"
	"  1  none has\n"
	"  2  wrong usage, or no engine\n"
	"  4  none has, as far as is known: an owner could not be asked\n"
	"Exit status of doctor:\n"
	"  0  nothing to mend; what could not be examined is printed as unknown\n"
	"  1  something to mend\n"
	"  2  wrong usage or settings\n"
	"Exit status of keys:\n"
	"  0  the time or the file ended, or a signal ended it\n"
	"  2  wrong usage, or the file could not be written\n"
	"  3  no engine answers, or another process records\n"
	"Exit status of restart:\n"
	"  0  the next engine serves\n"
	"  1  the engine was left running: nothing would keep its pages, or no permission\n"
	"  3  no engine answers\n\n"
	"Examples:\n"
	"  $ peercachectl status\n"
	"  $ peercachectl health || echo 'look at this host'\n"
	"  $ until peercachectl directory; do sleep 1; done\n"
	"  $ peercachectl doctor --config /etc/peercache.conf --peer 10.0.0.2\n"
	"  $ peercachectl trial --peer 10.0.0.2\n"
	"  $ peercachectl explain greeting\n"
	"  $ peercachectl --namespace llama-70b/bf16 --json explain 0af3...\n"
	"  $ peercachectl match greeting farewell\n"
	"  $ peercachectl --namespace llama-70b/bf16 --json match 0af3... 77d0...\n"
	"  $ peercachectl put greeting --string 'hello'\n"
	"  $ peercachectl clear --cluster --namespace 'pc2|model=llama-70b|prefix=|tag='\n"
	"  $ peercachectl quota 40GiB --ttl 3600 --namespace 'pc2|model=llama-70b|prefix=|tag='\n"
	"  $ peercachectl keys --record trace.jsonl --seconds 600\n"
	"  $ peercachectl --socket /run/b.sock get greeting\n\n"
	"Files:\n"
	"  %s/\n"
	"    pages/     getting-started.md, deployment.md, operations.md, troubleshooting.md, ...\n"
	"    examples/  settings files, alerts, and RUNBOOK.md for them\n"
	"    SETTINGS.md, METRICS.md, SGLANG.md\n";

/*
 * Folders from that of the program, bin, to the one that has share: PREFIX/bin, or
 * PREFIX/lib/python3.N/site-packages/peercache/bin of a wheel.
 */
#define FOLDERS_UP_MAX 6
#define DOC_FOLDER "share/doc/peercache-engine"

static void print_help(void)
{
	char path[PATH_MAX + sizeof("/" DOC_FOLDER "/pages")];
	ssize_t bytes = readlink("/proc/self/exe", path, PATH_MAX);

	for (unsigned up = 0; bytes > 0 && up <= FOLDERS_UP_MAX; up++) {
		char *end = memrchr(path, '/', (size_t)bytes);

		bytes = end ? end - path : 0;
		strcpy(path + bytes, "/" DOC_FOLDER "/pages");
		if (access(path, F_OK) == 0) {
			path[(size_t)bytes + strlen("/" DOC_FOLDER)] = '\0';
			printf(help, path);
			return;
		}
	}
	printf(help, "PREFIX/" DOC_FOLDER); /* a program of a build folder, as for its man page */
}

/* The commands, how many words each takes with itself, and what is done for each key. */
static const struct verb {
	const char *name;
	int least, most;
	int (*each)(struct ctl_run *ctl, const char *key);
} verbs[] = {{"status", 1, 1, NULL}, {"health", 1, 1, NULL}, {"top", 1, 1, NULL},
	{"members", 1, 1, NULL}, {"directory", 1, 1, NULL}, {"explain", 2, 2, NULL},
	{"match", 2, INT_MAX, NULL}, {"doctor", 1, 1, NULL}, {"trial", 0, 0, NULL},
	{"restart", 1, 1, NULL}, {"drain", 1, 1, NULL}, {"undrain", 1, 1, NULL},
	{"put", 2, 3, NULL}, {"get", 2, 2, NULL}, {"exists", 2, INT_MAX, ctl_exists},
	{"rm", 2, INT_MAX, ctl_rm}, {"prefetch", 2, INT_MAX, ctl_prefetch},
	{"pin", 2, INT_MAX, ctl_pin}, {"unpin", 2, INT_MAX, ctl_unpin}, {"clear", 1, 1, NULL},
	{"quota", 1, 2, NULL}, {"keys", 1, 1, NULL}, {"keygen", 2, 2, NULL},
	{"tls-example", 4, INT_MAX, NULL}};

static const struct verb *verb_find(const char *name)
{
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (!strcmp(verbs[i].name, name))
			return &verbs[i];
	die("%s: not a command; see --help", name);
}

static bool begins(const char *line, const char *with)
{
	return !strncmp(line, with, strlen(with));
}

#define HELP_COLUMN 23 /* of the text of an option */

/* Is the entry that begins with this line of `help` about the command? */
static bool entry_is_about(const char *heading, const char *line, const char *verb)
{
	size_t length = strlen(verb);

	if (begins(heading, "Commands"))
		return begins(line + 2, verb) && strchr(" \n", line[2 + length]);
	if (begins(heading, "Options")) {
		const char *text = line + HELP_COLUMN;
		size_t word = strspn(text, "abcdefghijklmnopqrstuvwxyz");

		return text[word] != ':' || (word == length && begins(text, verb));
	}
	if (begins(heading, "Examples")) {
		for (const char *at = strchr(line, ' '); at && *at != '\n'; at++)
			if (*at == ' ' && begins(at + 1, verb) && strchr(" \n", at[1 + length]))
				return true;
		return false;
	}
	if (begins(heading, "Exit status of "))
		return begins(heading + strlen("Exit status of "), verb);
	return begins(heading, "Exit status");
}

/* Prints what `help` says about one command. */
static void print_help_of(const char *verb)
{
	const char *heading = "", *told = NULL;
	bool about = false, own;
	char statuses[64];

	snprintf(statuses, sizeof(statuses), "Exit status of %s:", verb);
	own = strstr(help, statuses);
	printf("Usage: peercachectl [OPTION]... COMMAND\n");
	for (const char *line = help, *end; *line; line = end) {
		end = strchr(line, '\n') + 1;
		if (*line != ' ') {
			heading = line;
			continue;
		}
		if (line[2] != ' ')
			about = entry_is_about(heading, line, verb) &&
				!(own && begins(heading, "Exit status:"));
		if (!about)
			continue;
		if (told != heading)
			printf("\n%.*s", (int)(strchr(heading, '\n') + 1 - heading), heading);
		told = heading;
		printf("%.*s", (int)(end - line), line);
	}
}

/* Commands that look at the engine. -1: `verb` is none of them. */
static int look(struct ctl_run *ctl, int count, char **words)
{
	static const struct {
		const char *verb;
		int (*run)(struct ctl_run *ctl);
	} commands[] = {{"status", ctl_status}, {"members", ctl_members}, {"health", ctl_health},
		{"directory", ctl_directory}, {"top", ctl_top}, {"restart", ctl_restart},
		{"drain", ctl_drain}, {"undrain", ctl_undrain}, {"doctor", ctl_doctor},
		{"keys", ctl_keys}};

	if (!strcmp(words[0], "explain"))
		return ctl_explain(ctl, words[1]);
	if (!strcmp(words[0], "keygen"))
		return ctl_keygen(ctl, words[1]);
	if (!strcmp(words[0], "tls-example"))
		return ctl_tls_example(ctl, words[1], words[2], count - 3, words + 3);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(words[0], commands[i].verb))
			return commands[i].run(ctl);
	return -1;
}

static int work(struct ctl_run *ctl, const char *verb, int count, char **words)
{
	const struct verb *found = verb_find(verb);
	int status = 0;

	if (!strcmp(verb, "put"))
		return ctl_put(ctl, words[1], ctl->text ? NULL : words[2]);
	if (!strcmp(verb, "get"))
		return ctl_get(ctl, words[1]);
	if (!strcmp(verb, "clear"))
		return ctl_clear(ctl);
	if (!strcmp(verb, "quota"))
		return ctl_quota(ctl, count > 1 ? words[1] : NULL);
	if (!strcmp(verb, "match"))
		return ctl_match(ctl, count - 1, words + 1);
	for (int i = 1; i < count; i++)
		status |= found->each(ctl, words[i]);
	return status;
}

/* One document for all keys; to stderr if a file goes to stdout. */
static void print_results(const struct ctl_run *ctl, bool get)
{
	bool file = get && (!ctl->output || !strcmp(ctl->output, "-"));
	json_object *o = json_object_new_object();

	json_object_object_add(o, "results", json_object_get(ctl->results));
	print_json(o, file ? stderr : stdout);
}

static int command(struct ctl_run *ctl, int count, char **words)
{
	const struct verb *verb = verb_find(words[0]);
	int status;

	if (ctl->help) {
		print_help_of(verb->name);
		return 0;
	}
	if (!strcmp(words[0], "health") && count > 1) {
		fputs("peercachectl: health takes no arguments; see --help\n", stderr);
		return CTL_NO_ANSWER; /* 1 and 2 are findings */
	}
	if (!verb->most)
		die("%s takes its own options: write them behind it; see peercachectl %s --help",
			words[0], words[0]);
	if (count < verb->least || count > verb->most ||
		(!strcmp(words[0], "put") && count != (ctl->text ? 2 : 3)))
		die("%s: wrong number of arguments; see peercachectl %s --help", words[0],
			words[0]);
	if (ctl->cluster && strcmp(words[0], "clear"))
		die("--cluster is an option of clear; see --help");
	status = look(ctl, count, words);
	if (status < 0) {
		ctl->pc = open_session(ctl->socket, ctl->name_space);
		if (pc_channel_open(ctl->pc, &ctl->channel))
			die("%s", pc_error());
		ctl->results = json_object_new_array();
		status = work(ctl, words[0], count, words);
		if (ctl->json && json_object_array_length(ctl->results))
			print_results(ctl, !strcmp(words[0], "get"));
		json_object_put(ctl->results);
		pc_channel_close(ctl->channel);
	}
	pc_close(ctl->pc);
	return status;
}

/* An option of the engine, which the doctor reads and passes on. */
static void doctor_argument(struct ctl_run *ctl, const char *option, char *value)
{
	if (ctl->arguments + 2 > DOCTOR_ARGUMENTS)
		die("%s: more than %u settings; write them to a file", option,
			DOCTOR_ARGUMENTS / 2);
	ctl->argument[ctl->arguments++] = (char *)option;
	ctl->argument[ctl->arguments++] = value;
}

/* A time such as 60s. */
static uint64_t parse_seconds(const char *option, const char *text)
{
	char number[16] = "";
	size_t length = strlen(text);

	if (length && text[length - 1] == 's')
		length--;
	if (length >= sizeof(number))
		die("%s %s: not a time; give one such as 60s", option, text);
	memcpy(number, text, length);
	return parse_number(option, number, 1, 86400);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"socket", 1, NULL, 's'},
		{"namespace", 1, NULL, 'k'}, {"timeout-ms", 1, NULL, 'd'}, {"json", 0, NULL, 'j'},
		{"string", 1, NULL, 'S'}, {"output", 1, NULL, 'o'}, {"cluster", 0, NULL, 'C'},
		{"once", 0, NULL, '1'}, {"config", 1, NULL, 'c'}, {"set", 1, NULL, 'a'},
		{"peer", 1, NULL, 'p'}, {"root", 1, NULL, 'r'}, {"user", 1, NULL, 'u'},
		{"record", 1, NULL, 'R'}, {"seconds", 1, NULL, 'T'}, {"max-bytes", 1, NULL, 'M'},
		{"gets", 0, NULL, 'G'}, {"deadline", 1, NULL, 'D'}, {"ttl", 1, NULL, 't'},
		{"pid", 1, NULL, 'P'}, {"namespace-secret-file", 1, NULL, 'n'},
		{"help", 0, NULL, 'h'}, {"version", 0, NULL, 'V'}, {NULL, 0, NULL, 0}};
	struct ctl_run ctl = {.name_space = "peercachectl",
		.timeout_ms = 5000,
		.restart_ms = 60000,
		.seconds = 3600,
		.drain_seconds = 60,
		.ttl_s = -1,
		.max_bytes = 1u << 30};
	int o;

	tool_begin();
	if (argc > 1 && !strcmp(argv[1], "trial"))
		become_python("peercache.trial", argc - 2, argv + 2);
	while ((o = getopt_long(argc, argv, "o:", options, NULL)) != -1) {
		switch (o) {
		case 's': ctl.socket = optarg; break;
		case 'k': ctl.name_space = ctl.group = optarg; break;
		case 'd':
			ctl.timeout_ms = (unsigned)parse_number("--timeout-ms", optarg, 1, 600000);
			ctl.restart_ms = ctl.timeout_ms;
			break;
		case 'j': ctl.json = die_in_json = true; break;
		case 'S': ctl.text = optarg; break;
		case 'o': ctl.output = optarg; break;
		case '1': ctl.once = true; break;
		case 'C': ctl.cluster = true; break;
		case 'c': doctor_argument(&ctl, "--config", optarg); break;
		case 'a': doctor_argument(&ctl, "--set", optarg); break;
		case 'p':
			if (ctl.peers == DOCTOR_PEERS)
				die("--peer: at most %u hosts", DOCTOR_PEERS);
			ctl.peer[ctl.peers++] = optarg;
			break;
		case 'r': ctl.root = optarg; break;
		case 'u': ctl.user = optarg; break;
		case 'R': ctl.record = optarg; break;
		case 'T': ctl.seconds = parse_number("--seconds", optarg, 1, 10000000); break;
		case 'M':
			ctl.max_bytes = parse_size("--max-bytes", optarg, 4096, 1ull << 40);
			break;
		case 'G': ctl.gets = true; break;
		case 'P': ctl.drain_pid = parse_number("--pid", optarg, 2, 1u << 22); break;
		case 'D': ctl.drain_seconds = parse_seconds("--deadline", optarg); break;
		case 't':
			ctl.ttl_s = (int64_t)parse_number("--ttl", optarg, 0, GROUP_TTL_MAX_S);
			break;
		case 'n': secret_file = optarg; break;
		case 'h': ctl.help = true; break;
		case 'V': print_version(); return 0;
		default: die("see --help");
		}
	}
	if (optind == argc && ctl.help) {
		print_help();
		return 0;
	}
	if (optind == argc)
		die("no command; see --help");
	return command(&ctl, argc - optind, argv + optind);
}
