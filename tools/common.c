/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the command-line tools share; see common.h. Any thread. */
#include "config/text_fit.h"
#include "tools/common.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/size_text.h"
#include "config/stdout.h"

bool die_in_json;

void tool_begin(void)
{
	atexit(stdout_check);
}

void json_versions_add(json_object *o)
{
	if (!json_object_object_get_ex(o, "version", NULL))
		add_text(o, "version", pc_version());
	json_object_object_add(o, "json_version", json_object_new_int(JSON_VERSION));
}

void print_json(json_object *o, FILE *out)
{
	json_versions_add(o);
	fprintf(out, "%s\n",
		json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY |
							  JSON_C_TO_STRING_SPACED |
							  JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(o);
}

_Noreturn void die(const char *format, ...)
{
	va_list arguments;
	char text[1024];

	va_start(arguments, format);
	text_vfit(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
	if (die_in_json) {
		json_object *o = json_object_new_object();

		add_text(o, "error", text);
		print_json(o, stdout);
	}
	exit(2);
}

void print_version(void)
{
	printf("%s %s\n", program_invocation_short_name, pc_version());
}

uint64_t parse_size(const char *option, const char *text, uint64_t min, uint64_t max)
{
	uint64_t value = 0;
	int rc = size_parse(text, &value);

	if (rc == -EINVAL)
		die("%s %s: not a size; write bytes or a number with KiB, MiB, GiB", option, text);
	if (rc < 0 || value < min || value > max)
		die("%s %s: out of range; give %llu to %llu bytes", option, text,
			(unsigned long long)min, (unsigned long long)max);
	return value;
}

uint64_t parse_number(const char *option, const char *text, uint64_t min, uint64_t max)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-')
		die("%s %s: not a number", option, text);
	if (value < min || value > max)
		die("%s %s: out of range; give %llu to %llu", option, text, (unsigned long long)min,
			(unsigned long long)max);
	return value;
}

uint64_t now_ns(void)
{
	return clock_monotonic_ns();
}

/* The finaliser of SplitMix64 (Steele, Lea, Flood); it is a bijection, so numbers stay distinct. */
uint64_t mix64(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

void key_text(uint64_t id, char ret_key[KEY_TEXT_BYTES])
{
	static const char digits[] = "0123456789abcdef";

	for (unsigned word = 0; word < KEY_TEXT_BYTES / 16; word++) {
		uint64_t bits = mix64(id * 4 + word + 0x9e3779b97f4a7c15ull);

		for (unsigned i = 0; i < 16; i++, bits >>= 4)
			ret_key[word * 16 + i] = digits[bits & 15];
	}
}

#define CONTENT_STEP 0x9e3779b97f4a7c15ull

/*
 * Returns word `i` of a page's content. Uses only xor, shift, add and multiply, so that loops are
 * vectorized.
 */
static inline uint64_t content_word(uint64_t seed, size_t i)
{
	uint64_t x = seed + i * CONTENT_STEP;

	return x ^ x >> 29;
}

void content_fill(void *page, size_t bytes, uint64_t id)
{
	uint64_t seed = mix64(id + 1), word;
	unsigned char *at = page;
	size_t words = bytes / 8;

	for (size_t i = 0; i < words; i++) {
		word = content_word(seed, i);
		memcpy(at + i * 8, &word, 8);
	}
	word = content_word(seed, words);
	memcpy(at + words * 8, &word, bytes % 8);
}

bool content_is(const void *page, size_t bytes, uint64_t id)
{
	uint64_t seed = mix64(id + 1), word, differs = 0;
	const unsigned char *at = page;
	size_t words = bytes / 8;

	for (size_t i = 0; i < words; i++) {
		memcpy(&word, at + i * 8, 8);
		differs |= word ^ content_word(seed, i);
	}
	word = content_word(seed, words);
	return !differs && memcmp(at + words * 8, &word, bytes % 8) == 0;
}

void batch_open(struct batch *b, struct pc *pc, size_t page_bytes, unsigned pages)
{
	void *memory = NULL;

	*b = (struct batch){.private_memory = !pc,
		.page_bytes = page_bytes,
		.page = calloc(pages, sizeof(*b->page)),
		.segment = calloc(pages, sizeof(*b->segment)),
		.key = malloc(pages * sizeof(*b->key)),
		.result = calloc(pages, sizeof(*b->result))};
	if (!pc)
		memory = malloc(page_bytes * pages);
	else if (pc_memory_alloc(pc, page_bytes * pages, &memory))
		die("%s", pc_error());
	if (!memory || !b->page || !b->segment || !b->key || !b->result)
		die("out of memory");
	b->memory = memory;
}

void batch_set(struct batch *b, unsigned i, uint64_t id)
{
	key_text(id, b->key[i]);
	b->segment[i] = (struct pc_segment){b->memory + i * b->page_bytes, b->page_bytes};
	b->page[i] = (struct pc_page){b->key[i], KEY_TEXT_BYTES, &b->segment[i], 1};
}

void batch_close(struct batch *b)
{
	if (b->private_memory)
		free(b->memory);
	free(b->page);
	free(b->segment);
	free(b->key);
	free(b->result);
}

void histogram_add(struct histogram *h, uint64_t ns)
{
	unsigned bucket;

	if (ns < 32) {
		bucket = (unsigned)ns;
	} else {
		unsigned power = 63u - (unsigned)__builtin_clzll(ns);

		bucket = (power - 4) * 32 + (unsigned)(ns >> (power - 5) & 31);
		if (bucket >= HISTOGRAM_BUCKETS)
			bucket = HISTOGRAM_BUCKETS - 1;
	}
	h->count[bucket]++;
	h->total++;
	if (ns > h->max_ns)
		h->max_ns = ns;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
		into->count[i] += from->count[i];
	into->total += from->total;
	if (from->max_ns > into->max_ns)
		into->max_ns = from->max_ns;
}

double histogram_us(const struct histogram *h, double fraction)
{
	uint64_t rank = (uint64_t)(fraction * (double)h->total), seen = 0;

	if (!h->total)
		return 0;
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
		seen += h->count[i];
		if (seen > rank) {
			unsigned power = i / 32 + 4;

			if (i < 32)
				return i / 1e3;
			return (double)((uint64_t)(32 + i % 32) << (power - 5)) / 1e3;
		}
	}
	return (double)h->max_ns / 1e3;
}

unsigned parse_sockets(const char *list, const char **ret_sockets)
{
	static char copy[SOCKETS_MAX * 128];
	unsigned count = 0;
	char *state = NULL;

	if (!list)
		list = getenv("PEERCACHE_SOCKETS");
	if (!list || !*list) {
		ret_sockets[0] = NULL; /* with NULL, pc_open() uses its default socket */
		return 1;
	}
	if (snprintf(copy, sizeof(copy), "%s", list) >= (int)sizeof(copy))
		die("the list of sockets has more than %zu characters", sizeof(copy) - 1);
	for (char *s = strtok_r(copy, ",", &state); s; s = strtok_r(NULL, ",", &state)) {
		if (count == SOCKETS_MAX)
			die("more than %d sockets given", SOCKETS_MAX);
		ret_sockets[count++] = s;
	}
	if (!count)
		die("no socket in \"%s\"", list);
	return count;
}

/* What --crc says, for open_session(). */
static struct pc_options crc_options;

void parse_crc(const char *text)
{
	if (!strcmp(text, "never"))
		crc_options.verify = PC_VERIFY_NEVER;
	else if (!strcmp(text, "always"))
		crc_options.verify = PC_VERIFY_ALWAYS;
	else if (!strncmp(text, "sample:", 7))
		crc_options.verify_one_in =
			(unsigned)parse_number("--crc sample:", text + 7, 1, PC_VERIFY_ONE_IN_MAX);
	else if (strcmp(text, "sample"))
		die("--crc %s: give never, sample, sample:N or always", text);
}

const char *secret_file;

struct pc *open_session(const char *socket, const char *name_space)
{
	struct pc_options options = crc_options;
	struct pc *pc;

	options.socket = socket;
	options.name_space = name_space;
	if (pc_open_with_secret(&options, secret_file, &pc))
		die("%s", pc_error());
	return pc;
}

json_object *engine_report(struct pc *pc)
{
	json_object *report;
	char *text;

	if (pc_report(pc, &text))
		return NULL;
	report = json_tokener_parse(text);
	free(text);
	return report;
}

#define POPULATED_TURN_NS 100000000 /* between two looks */
#define POPULATED_TELL_TURNS 20

void wait_populated(struct pc *pc)
{
	for (unsigned turns = 0;; turns++) {
		json_object *report = engine_report(pc), *figures = json_get(report, "figures");
		int64_t of = json_number(figures, "memory_bytes"),
			left = of - json_number(figures, "memory_populated_bytes");

		json_object_put(report);
		if (left <= 0)
			return;
		if (turns % POPULATED_TELL_TURNS == POPULATED_TELL_TURNS - 1)
			fprintf(stderr,
				"waiting until the engine's memory is populated: %.1f of %.1f GiB left\n",
				(double)left / (1u << 30), (double)of / (1u << 30));
		nanosleep(&(struct timespec){.tv_nsec = POPULATED_TURN_NS}, NULL);
	}
}

int64_t json_number(json_object *o, const char *name)
{
	return json_object_get_int64(json_get(o, name));
}

double json_real(json_object *o, const char *name)
{
	return json_object_get_double(json_get(o, name));
}

bool json_flag(json_object *o, const char *name)
{
	return json_object_get_boolean(json_get(o, name));
}

void add_number(json_object *o, const char *name, uint64_t value)
{
	json_object_object_add(o, name, json_object_new_int64((int64_t)value));
}

void add_text(json_object *o, const char *name, const char *text)
{
	json_object_object_add(o, name, json_object_new_string(text));
}

void add_real(json_object *o, const char *name, double value)
{
	json_object_object_add(o, name, json_object_new_double(value));
}

void write_json(json_object *object, const char *path)
{
	FILE *out = strcmp(path, "-") ? fopen(path, "w") : stdout;

	if (!out)
		die("--json %s: %s", path, strerror(errno));
	fprintf(out, "%s\n",
		json_object_to_json_string_ext(
			object, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED));
	if (out == stdout ? fflush(out) : fclose(out))
		die("--json %s: %s", path, strerror(errno));
}

/* ---- programs in Python ---------------------------------------------------------------------- */

/* Tells Python where the package of a build tree is, and returns the folder of this program. */
static const char *set_path(void)
{
	static char path[4096];
	const char *before = getenv("PYTHONPATH");
	char package[4352], *slash;
	ssize_t got = readlink("/proc/self/exe", path, sizeof(path) - 1);

	path[got > 0 ? got : 0] = '\0';
	slash = strrchr(path, '/');
	if (!slash)
		return "";
	*slash = '\0';
	snprintf(package, sizeof(package), "%s/../engine/client/python", path);
	if (access(package, F_OK))
		return path; /* an installed program: Python finds an installed package */
	snprintf(package, sizeof(package), "%s/../engine/client/python%s%s", path,
		before ? ":" : "", before ? before : "");
	setenv("PYTHONPATH", package, 1);
	return path;
}

void become_python(const char *module, int count, char **words)
{
	const char *python = getenv("PEERCACHE_PYTHON");
	char **args = calloc((size_t)count + 4, sizeof(*args));

	if (!args)
		die("out of memory");
	setenv("PEERCACHE_PROGRAMS", set_path(), 1);
	setenv("PYTHONSAFEPATH", "1", 1); /* not from the current folder: root may be in any */
	args[0] = python ? (char *)(uintptr_t)python : (char *)"python3";
	args[1] = (char *)"-m";
	args[2] = (char *)(uintptr_t)module;
	memcpy(args + 3, words, (size_t)count * sizeof(*args));
	execvp(args[0], args);
	die("cannot run %s, which this command needs: %s", args[0], strerror(errno));
}
