/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl: prints the state of a running engine, and stores, reads and removes files. One
 * thread.
 *
 * A file is stored as pages of CHUNK bytes under the keys KEY\0N. The last page stored is a
 * manifest under KEY with the length and the hash of the file, so that a reader needs only the key.
 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "tools/common.h"

#define CHUNK (1u << 20) /* bytes of one page of a stored file; the last page may be shorter */
#define BATCH 16u        /* pages of a stored file in one call */
#define FILE_BYTES_MAX (64ull << 30)
#define KEY_MAX 1000u /* characters of the argument KEY, at most */

/* Content of the page that a file has under its KEY. */
struct manifest {
	char magic[8];  /* the bytes of manifest_magic */
	uint64_t bytes; /* length of the stored file, bytes */
	uint64_t xxh3;  /* XXH3 hash of the stored file */
	uint64_t spare; /* always 0 */
};
static const char manifest_magic[8] = "PCFILE1";

struct ctl {
	const char *socket, *name_space, *output, *text;
	bool json;
	unsigned timeout_ms;
	struct pc *pc;
	struct pc_channel *channel;
};

static const char help[] =
	"Usage: peercachectl [OPTION]... COMMAND\n"
	"Shows the state of a running engine; stores, fetches and removes files.\n\n"
	"Commands:\n"
	"  status               print the state and the counters of the engine of this host\n"
	"  members              print the members of the cluster that this engine sees alive\n"
	"  put KEY FILE         store a file under KEY (\"-\": standard input)\n"
	"  put KEY --string S   store a string\n"
	"  get KEY [-o FILE]    write the file to FILE (default: standard output)\n"
	"  exists KEY...        print whether a member of the cluster has it\n"
	"  rm KEY...            remove it from the cluster\n\n"
	"Options:\n"
	"  --socket PATH        the engine's socket (default: $PEERCACHE_SOCKET or built in)\n"
	"  --namespace TEXT     namespace of the keys (default \"peercachectl\")\n"
	"  --timeout-ms T       deadline of each call (default 5000)\n"
	"  --string S           put: store this string\n"
	"  -o, --output FILE    get: write to this file (default: standard output)\n"
	"  --json               machine-readable output\n"
	"  --help               print this text\n"
	"  --version            print the version\n\n"
	"Exit status:\n"
	"  0  success\n"
	"  1  a key is not there or could not be stored\n"
	"  2  wrong usage, or no engine\n\n"
	"Examples:\n"
	"  $ peercachectl status\n"
	"  $ peercachectl put greeting --string 'hello'\n"
	"  $ peercachectl --socket /run/b.sock get greeting\n";

static void print_result(const struct ctl *ctl, const char *key, const char *result, uint64_t bytes)
{
	if (ctl->json) {
		json_object *o = json_object_new_object();

		json_object_object_add(o, "key", json_object_new_string(key));
		json_object_object_add(o, "result", json_object_new_string(result));
		json_object_object_add(o, "bytes", json_object_new_int64((int64_t)bytes));
		fprintf(ctl->output || bytes == 0 ? stdout : stderr, "%s\n",
			json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN));
		json_object_put(o);
	} else {
		fprintf(stderr, "%s: %s\n", key, result);
	}
}

/* Writes the key of page N of a file, KEY\0N; returns the length of that key. */
static size_t chunk_key(const char *key, uint64_t n, char ret[KEY_MAX + 24])
{
	size_t length = strlen(key);

	memcpy(ret, key, length + 1);
	return length + 1 + (size_t)snprintf(ret + length + 1, 23, "%lu", n);
}

/* Reads a whole file into memory; the caller frees the memory. */
static unsigned char *read_input(const char *path, uint64_t *ret_bytes)
{
	FILE *in = strcmp(path, "-") ? fopen(path, "rb") : stdin;
	unsigned char *data = NULL;
	uint64_t bytes = 0, room = 0;

	if (!in)
		die("%s: %s", path, strerror(errno));
	for (;;) {
		size_t n;

		if (bytes == room) {
			room = room ? room * 2 : CHUNK;
			data = realloc(data, room);
			if (!data || room > FILE_BYTES_MAX)
				die("%s: too large: no memory, or more than 64 GiB", path);
		}
		n = fread(data + bytes, 1, room - bytes, in);
		bytes += n;
		if (n == 0)
			break;
	}
	if (ferror(in))
		die("%s: %s", path, strerror(errno));
	if (in != stdin)
		fclose(in);
	*ret_bytes = bytes;
	return data;
}

/*
 * Calls `function` for all pages of a file, BATCH pages at a time. Returns PC_HIT or the first
 * other result; pc_remove continues after other results.
 */
static enum pc_result chunks(
	struct ctl *ctl, page_call function, const char *key, unsigned char *data, uint64_t bytes)
{
	static char name[BATCH][KEY_MAX + 24];
	uint64_t count = (bytes + CHUNK - 1) / CHUNK;

	for (uint64_t from = 0; from < count; from += BATCH) {
		unsigned n = (unsigned)(count - from < BATCH ? count - from : BATCH);
		struct pc_page page[BATCH];
		struct pc_segment segment[BATCH];
		enum pc_result result[BATCH];

		for (unsigned i = 0; i < n; i++) {
			uint64_t at = (from + i) * CHUNK;

			segment[i].base = data ? data + at : NULL;
			segment[i].bytes = bytes - at < CHUNK ? bytes - at : CHUNK;
			page[i] = (struct pc_page){
				name[i], chunk_key(key, from + i, name[i]), &segment[i], 1};
		}
		if (function(ctl->channel, page, n, ctl->timeout_ms, result))
			die("%s", pc_error());
		for (unsigned i = 0; i < n; i++)
			if (result[i] != PC_HIT && function != pc_remove)
				return result[i];
	}
	return PC_HIT;
}

/* Calls `function`, such as pc_get(), for the manifest page of a file. */
static enum pc_result manifest_call(
	struct ctl *ctl, page_call function, const char *key, struct manifest *manifest)
{
	struct pc_segment segment = {manifest, sizeof(*manifest)};
	struct pc_page page = {key, strlen(key), &segment, 1};
	enum pc_result result;

	if (function(ctl->channel, &page, 1, ctl->timeout_ms, &result))
		die("%s", pc_error());
	return result;
}

static enum pc_result manifest_get(struct ctl *ctl, const char *key, struct manifest *ret)
{
	enum pc_result result = manifest_call(ctl, pc_get, key, ret);

	if (result == PC_HIT && (memcmp(ret->magic, manifest_magic, sizeof(ret->magic)) ||
					ret->bytes > FILE_BYTES_MAX))
		return PC_INVALID;
	return result;
}

static void key_check(const char *key)
{
	if (!*key || strlen(key) > KEY_MAX)
		die("a key has 1 to %u characters", KEY_MAX);
}

static enum pc_result remove_file(struct ctl *ctl, const char *key)
{
	struct manifest manifest;
	enum pc_result result = manifest_get(ctl, key, &manifest);

	if (result != PC_HIT)
		return result;
	/* The manifest page is removed first, so that no reader finds a partly removed file. */
	result = manifest_call(ctl, pc_remove, key, &manifest);
	chunks(ctl, pc_remove, key, NULL, manifest.bytes);
	return result;
}

static int put(struct ctl *ctl, const char *key, const char *path)
{
	struct manifest manifest = {.spare = 0};
	uint64_t bytes;
	unsigned char *data;
	enum pc_result result;

	key_check(key);
	if (ctl->text) {
		bytes = strlen(ctl->text);
		data = (unsigned char *)strdup(ctl->text);
	} else {
		data = read_input(path, &bytes);
	}
	/* A set does not replace a page that exists, so an older file of that key is removed
	 * first. */
	remove_file(ctl, key);
	memcpy(manifest.magic, manifest_magic, sizeof(manifest.magic));
	manifest.bytes = bytes;
	manifest.xxh3 = XXH3_64bits(data, bytes);
	result = chunks(ctl, pc_set, key, data, bytes);
	if (result == PC_HIT)
		result = manifest_call(ctl, pc_set, key, &manifest);
	free(data);
	if (result == PC_HIT && !ctl->json)
		printf("%s: stored %lu bytes\n", key, bytes);
	else
		print_result(ctl, key, pc_result_name(result), 0);
	return result == PC_HIT ? 0 : 1;
}

static int get(struct ctl *ctl, const char *key)
{
	struct manifest manifest;
	enum pc_result result;
	unsigned char *data;
	FILE *out = stdout;

	key_check(key);
	result = manifest_get(ctl, key, &manifest);
	if (result != PC_HIT) {
		print_result(ctl, key, pc_result_name(result), 0);
		return 1;
	}
	data = malloc(manifest.bytes + 1);
	if (!data)
		die("%s: %lu bytes do not fit in memory", key, manifest.bytes);
	result = chunks(ctl, pc_get, key, data, manifest.bytes);
	if (result == PC_HIT && XXH3_64bits(data, manifest.bytes) != manifest.xxh3)
		die("%s: the hash of the bytes differs from the stored hash", key);
	if (result == PC_HIT) {
		if (ctl->output && strcmp(ctl->output, "-"))
			out = fopen(ctl->output, "wb");
		if (!out || fwrite(data, 1, manifest.bytes, out) != manifest.bytes ||
			(out == stdout ? fflush(out) : fclose(out)))
			die("%s: %s", ctl->output ? ctl->output : "standard output",
				strerror(errno));
	}
	free(data);
	if (result != PC_HIT || ctl->json)
		print_result(ctl, key, pc_result_name(result), manifest.bytes);
	return result == PC_HIT ? 0 : 1;
}

static int exists(struct ctl *ctl, const char *key)
{
	enum pc_result result;

	key_check(key);
	result = manifest_call(ctl, pc_exists, key, NULL);
	if (ctl->json)
		print_result(ctl, key, pc_result_name(result), 0);
	else
		printf("%s: %s\n", key, result == PC_HIT ? "yes" : pc_result_name(result));
	return result == PC_HIT ? 0 : 1;
}

static int rm(struct ctl *ctl, const char *key)
{
	enum pc_result result;

	key_check(key);
	result = remove_file(ctl, key);
	if (ctl->json)
		print_result(ctl, key, pc_result_name(result), 0);
	else
		printf("%s: %s\n", key, result == PC_HIT ? "removed" : pc_result_name(result));
	return result == PC_HIT ? 0 : 1;
}

/* Prints a report's objects and lists as indented lines; leaves out numbers that are 0. */
static void print_tree(json_object *o, const char *name, int depth)
{
	if (json_object_is_type(o, json_type_object)) {
		if (name)
			printf("%*s%s\n", depth * 2, "", name);
		json_object_object_foreach (o, key, value)
			print_tree(value, key, depth + (name != NULL));
	} else if (json_object_is_type(o, json_type_array)) {
		for (size_t i = 0; i < json_object_array_length(o); i++) {
			char item[80];

			snprintf(item, sizeof(item), "%s %zu", name, i);
			print_tree(json_object_array_get_idx(o, i), item, depth);
		}
	} else if (!json_object_is_type(o, json_type_int) || json_object_get_int64(o)) {
		printf("%*s%-28s %s\n", depth * 2, "", name, json_object_get_string(o));
	}
}

/* Prints the engine's report or its list of members. */
static int show(struct ctl *ctl, bool members)
{
	json_object *report = engine_report(ctl->pc), *list = NULL;

	if (!report)
		die("%s", pc_error());
	if (members)
		json_object_object_get_ex(report, "members", &list);
	if (ctl->json) {
		printf("%s\n", json_object_to_json_string_ext(list ? list : report,
				       JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED));
	} else if (members) {
		print_tree(list, "member", 0);
	} else {
		print_tree(report, NULL, 0);
	}
	json_object_put(report);
	return 0;
}

static int command(struct ctl *ctl, int count, char **words)
{
	const char *verb = count ? words[0] : "";
	int status = 0;

	if (!strcmp(verb, "status") && count == 1)
		return show(ctl, false);
	if (!strcmp(verb, "members") && count == 1)
		return show(ctl, true);
	if (!strcmp(verb, "put") && count == (ctl->text ? 2 : 3))
		return put(ctl, words[1], ctl->text ? NULL : words[2]);
	if (!strcmp(verb, "get") && count == 2)
		return get(ctl, words[1]);
	if ((!strcmp(verb, "exists") || !strcmp(verb, "rm")) && count >= 2) {
		for (int i = 1; i < count; i++)
			status |= verb[0] == 'e' ? exists(ctl, words[i]) : rm(ctl, words[i]);
		return status;
	}
	die("%s: not a command, or a wrong number of arguments; see --help",
		count ? verb : "(nothing)");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"socket", 1, NULL, 's'},
		{"namespace", 1, NULL, 'k'}, {"timeout-ms", 1, NULL, 'd'}, {"json", 0, NULL, 'j'},
		{"string", 1, NULL, 'S'}, {"output", 1, NULL, 'o'}, {"help", 0, NULL, 'h'},
		{"version", 0, NULL, 'V'}, {NULL, 0, NULL, 0}};
	struct ctl ctl = {.name_space = "peercachectl", .timeout_ms = 5000};
	int o, status;

	while ((o = getopt_long(argc, argv, "o:", options, NULL)) != -1) {
		switch (o) {
		case 's': ctl.socket = optarg; break;
		case 'k': ctl.name_space = optarg; break;
		case 'd':
			ctl.timeout_ms = (unsigned)parse_number("--timeout-ms", optarg, 1, 600000);
			break;
		case 'j': ctl.json = true; break;
		case 'S': ctl.text = optarg; break;
		case 'o': ctl.output = optarg; break;
		case 'h': fputs(help, stdout); return 0;
		case 'V': print_version(); return 0;
		default: die("see --help");
		}
	}
	if (optind == argc)
		die("no command; see --help");
	ctl.pc = open_session(ctl.socket, ctl.name_space);
	if (pc_channel_open(ctl.pc, &ctl.channel))
		die("%s", pc_error());
	status = command(&ctl, argc - optind, argv + optind);
	pc_channel_close(ctl.channel);
	pc_close(ctl.pc);
	return status;
}
