/* SPDX-License-Identifier: Apache-2.0 */
/* peercachectl put, get, exists and rm: small values, to try a cluster out. One thread. */
#include <errno.h>
#include <string.h>

#include "tools/common.h"
#include "tools/ctl.h"

#define KEY_MAX 1000u /* characters of a KEY, at most */
#define VALUE_BYTES_MAX ((64u << 10) - 16u)

/* The page of a KEY. All have one length, which a reader must know. */
struct value {
	char magic[8];  /* value_magic */
	uint64_t bytes; /* length of the value */
	char data[VALUE_BYTES_MAX];
};
static const char value_magic[8] = "PCVALUE";

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

static enum pc_result value_call(
	struct ctl_run *ctl, page_call function, const char *key, struct value *value)
{
	struct pc_segment segment = {value, sizeof(*value)};
	struct pc_page page = {key, strlen(key), &segment, 1};
	enum pc_result result;

	if (!*key || strlen(key) > KEY_MAX)
		die("a key has 1 to %u characters", KEY_MAX);
	if (function(ctl->channel, &page, 1, ctl->timeout_ms, &result))
		die("%s", pc_error());
	return result;
}

/* Reads a file, "-" for standard input, of which a value has room for `bytes`. */
static uint64_t input_read(const char *path, char *ret, size_t bytes)
{
	FILE *in = strcmp(path, "-") ? fopen(path, "rb") : stdin;
	size_t got = in ? fread(ret, 1, bytes, in) : 0;
	bool longer = in && got == bytes && fgetc(in) != EOF;

	if (!in || ferror(in))
		die("%s: %s", path, strerror(errno));
	if (longer)
		die("%s: put stores at most %zu bytes under a key", path, bytes);
	if (in != stdin)
		fclose(in);
	return got;
}

int ctl_put(struct ctl_run *ctl, const char *key, const char *path)
{
	static struct value value;
	enum pc_result result;

	memcpy(value.magic, value_magic, sizeof(value.magic));
	if (ctl->text) {
		value.bytes = strlen(ctl->text);
		if (value.bytes > sizeof(value.data))
			die("put stores at most %zu bytes under a key", sizeof(value.data));
		memcpy(value.data, ctl->text, value.bytes);
	} else {
		value.bytes = input_read(path, value.data, sizeof(value.data));
	}
	value_call(ctl, pc_remove, key, &value);
	result = value_call(ctl, pc_set, key, &value);
	if (result == PC_HIT && !ctl->json)
		printf("%s: stored %lu bytes\n", key, value.bytes);
	else
		print_result(ctl, key, result, 0);
	return result == PC_HIT ? 0 : 1;
}

int ctl_get(struct ctl_run *ctl, const char *key)
{
	static struct value value;
	enum pc_result result = value_call(ctl, pc_get, key, &value);
	FILE *out = stdout;

	if (result == PC_HIT && (memcmp(value.magic, value_magic, sizeof(value.magic)) != 0 ||
					value.bytes > sizeof(value.data)))
		result = PC_INVALID;
	if (result == PC_HIT) {
		if (ctl->output && strcmp(ctl->output, "-"))
			out = fopen(ctl->output, "wb");
		if (!out || fwrite(value.data, 1, value.bytes, out) != value.bytes ||
			(out == stdout ? fflush(out) : fclose(out)))
			die("%s: %s", ctl->output ? ctl->output : "standard output",
				strerror(errno));
	}
	if (result != PC_HIT || ctl->json)
		print_result(ctl, key, result, result == PC_HIT ? value.bytes : 0);
	return result == PC_HIT ? 0 : 1;
}

static int answer_print(
	const struct ctl_run *ctl, const char *key, enum pc_result result, const char *hit)
{
	if (ctl->json)
		print_result(ctl, key, result, 0);
	else
		printf("%s: %s\n", key, result == PC_HIT ? hit : pc_result_name(result));
	return result == PC_HIT ? 0 : 1;
}

int ctl_exists(struct ctl_run *ctl, const char *key)
{
	return answer_print(ctl, key, value_call(ctl, pc_exists, key, NULL), "yes");
}

int ctl_prefetch(struct ctl_run *ctl, const char *key)
{
	return answer_print(
		ctl, key, value_call(ctl, pc_prefetch, key, NULL), "here, or being brought");
}

static unsigned pin_seconds;

static int pin_call(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return pc_pin(channel, pages, count, pin_seconds, timeout_ms, ret_results);
}

int ctl_pin(struct ctl_run *ctl, const char *key)
{
	pin_seconds = ctl->seconds < PC_PIN_MAX_S ? (unsigned)ctl->seconds : PC_PIN_MAX_S;
	return answer_print(ctl, key, value_call(ctl, pin_call, key, NULL), "pinned");
}

int ctl_unpin(struct ctl_run *ctl, const char *key)
{
	return answer_print(ctl, key, value_call(ctl, pc_unpin, key, NULL), "not pinned");
}

int ctl_rm(struct ctl_run *ctl, const char *key)
{
	return answer_print(ctl, key, value_call(ctl, pc_remove, key, NULL), "removed");
}
