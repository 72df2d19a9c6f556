/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl put, get, exists and rm: files as pages. One thread.
 *
 * A file is stored as pages of CHUNK bytes under the keys KEY\0N. The last page stored is a
 * manifest under KEY with the length and the hash of the file, so that a reader needs only the key.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "tools/common.h"
#include "tools/ctl.h"

#define CHUNK (1u << 20) /* bytes of a page of a file; the last one may be shorter */
#define BATCH 16u        /* pages of a file in one call */
#define FILE_BYTES_MAX (64ull << 30)
#define KEY_MAX 1000u /* characters of a KEY, at most */

/* The content of the page under KEY. */
struct manifest {
	char magic[8];  /* manifest_magic */
	uint64_t bytes; /* length of the file in bytes */
	uint64_t xxh3;  /* XXH3 hash of the file */
	uint64_t spare; /* 0 */
};
static const char manifest_magic[8] = "PCFILE1";

/* With what a result means and what to do, unless it is the answer to the question. */
static void print_result(
	const struct ctl_run *ctl, const char *key, enum pc_result result, uint64_t bytes)
{
	const char *name = pc_result_name(result);
	const char *why = result == PC_HIT || result == PC_MISS ? ""
			  : result == PC_INVALID && *pc_error() ? pc_error()
								: pc_result_text(result);

	if (ctl->json) {
		json_object *o = json_object_new_object();

		add_text(o, "key", key);
		add_text(o, "result", name);
		if (*why)
			add_text(o, "why", why);
		add_number(o, "bytes", bytes);
		json_object_array_add(ctl->results, o);
	} else {
		fprintf(stderr, "%s: %s%s%s\n", key, name, *why ? ": " : "", why);
	}
}

/* Writes the key KEY\0N of page N of a file; returns its length. */
static size_t chunk_key(const char *key, uint64_t n, char ret[KEY_MAX + 24])
{
	size_t length = strlen(key);

	memcpy(ret, key, length + 1);
	return length + 1 + (size_t)snprintf(ret + length + 1, 23, "%lu", n);
}

/* Reads a whole file into memory, which the caller frees. */
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
static enum pc_result chunks(struct ctl_run *ctl, page_call function, const char *key,
	unsigned char *data, uint64_t bytes)
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

/* Calls `function` for the manifest page. */
static enum pc_result manifest_call(
	struct ctl_run *ctl, page_call function, const char *key, struct manifest *manifest)
{
	struct pc_segment segment = {manifest, sizeof(*manifest)};
	struct pc_page page = {key, strlen(key), &segment, 1};
	enum pc_result result;

	if (function(ctl->channel, &page, 1, ctl->timeout_ms, &result))
		die("%s", pc_error());
	return result;
}

static enum pc_result manifest_get(struct ctl_run *ctl, const char *key, struct manifest *ret)
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

static enum pc_result remove_file(struct ctl_run *ctl, const char *key)
{
	struct manifest manifest;
	enum pc_result result = manifest_get(ctl, key, &manifest);

	if (result == PC_INVALID || result == PC_GONE)
		return result;
	/*
	 * A host that is away may have the file, whose length is not known then. Without its
	 * manifest no reader finds it, and without its first page none of a short file is left.
	 */
	if (result != PC_HIT)
		manifest.bytes = 1;
	/* The manifest is removed first, so that no reader finds a partly removed file. */
	result = manifest_call(ctl, pc_remove, key, &manifest);
	chunks(ctl, pc_remove, key, NULL, manifest.bytes);
	return result;
}

int ctl_put(struct ctl_run *ctl, const char *key, const char *path)
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
	/*
	 * The last pages of a file that is larger than the pools evict its first ones. The page of
	 * a short file is missing only if another put or remove of this key took it.
	 */
	if (result == PC_HIT && bytes > CHUNK)
		result = chunks(ctl, pc_exists, key, data, bytes) == PC_MISS ? PC_FULL : PC_HIT;
	if (result == PC_HIT && !ctl->json)
		printf("%s: stored %lu bytes\n", key, bytes);
	else
		print_result(ctl, key, result, 0);
	if (result != PC_HIT) {
		manifest_call(ctl, pc_remove, key, &manifest);
		chunks(ctl, pc_remove, key, data, bytes);
	}
	free(data);
	return result == PC_HIT ? 0 : 1;
}

int ctl_get(struct ctl_run *ctl, const char *key)
{
	struct manifest manifest;
	enum pc_result result;
	unsigned char *data;
	FILE *out = stdout;

	key_check(key);
	result = manifest_get(ctl, key, &manifest);
	if (result != PC_HIT) {
		print_result(ctl, key, result, 0);
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
		print_result(ctl, key, result, manifest.bytes);
	return result == PC_HIT ? 0 : 1;
}

int ctl_exists(struct ctl_run *ctl, const char *key)
{
	enum pc_result result;

	key_check(key);
	result = manifest_call(ctl, pc_exists, key, NULL);
	if (ctl->json)
		print_result(ctl, key, result, 0);
	else
		printf("%s: %s\n", key, result == PC_HIT ? "yes" : pc_result_name(result));
	return result == PC_HIT ? 0 : 1;
}

int ctl_rm(struct ctl_run *ctl, const char *key)
{
	enum pc_result result;

	key_check(key);
	result = remove_file(ctl, key);
	if (ctl->json)
		print_result(ctl, key, result, 0);
	else
		printf("%s: %s\n", key, result == PC_HIT ? "removed" : pc_result_name(result));
	return result == PC_HIT ? 0 : 1;
}
