/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The value of a TEXT setting. People write quotes and comments around values, `~` and relative
 * paths; what would become part of the value without their knowledge is refused here. Start-up
 * only, one thread.
 */
#include "config/setting.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int setting_text_bare(const char *value, const char **ret_wrong)
{
	size_t length = strlen(value);
	char last = length ? value[length - 1] : '\0';

	if (*value == '"' || *value == '\'' || last == '"' || last == '\'') {
		*ret_wrong = "quotes would become part of the value; remove them";
		return -EINVAL;
	}
	if (*value == '#' || strstr(value, " #") || strstr(value, "\t#")) {
		*ret_wrong =
			"a comment behind a value would become part of it; put it on a line of its own";
		return -EINVAL;
	}
	if (strchr(value, ';')) {
		*ret_wrong = "a ; would become part of the value; remove it";
		return -EINVAL;
	}
	return 0;
}

bool setting_is_list(const struct setting *one)
{
	return strcmp(one->unit, "list") == 0 || strcmp(one->unit, "paths") == 0;
}

/* The value as it is stored. */
struct stored {
	size_t used, room; /* bytes of `text`, the zero not counted; at most `room` */
	const char *wrong; /* NULL: nothing */
	char text[SETTING_TEXT_BYTES];
};

static void append(struct stored *to, const char *text, size_t length)
{
	if (length > to->room - to->used) {
		to->wrong = "wrong length";
		return;
	}
	memcpy(to->text + to->used, text, length);
	to->used += length;
}

/* Appends the path of `length` bytes at `path`, which may be empty. */
static void path_append(struct stored *to, const char *path, size_t length)
{
	const char *home = getenv("HOME");

	if (length && *path == '~' && (length == 1 || path[1] == '/')) {
		if (home && *home == '/')
			append(to, home, strlen(home));
		else
			to->wrong =
				"$HOME, which ~ stands for, is no absolute path; write the path";
		path++;
		length--;
	} else if (length && *path == '~') {
		to->wrong = "~ stands for $HOME only before a /; write the path of that directory";
	} else if (memchr(path, '$', length)) {
		to->wrong = "variables are not expanded; write the path";
	} else if (length && *path != '/') {
		to->wrong =
			"not an absolute path, so it would depend on the working directory; begin it with / or ~/";
	}
	append(to, path, length);
}

static void paths_append(struct stored *to, const char *value)
{
	for (;;) {
		size_t length = strcspn(value, ","), blanks = strspn(value, " "), end = length;

		while (end > blanks && value[end - 1] == ' ')
			end--;
		path_append(to, value + blanks, end > blanks ? end - blanks : 0);
		if (!value[length] || to->wrong)
			return;
		append(to, ",", 1);
		value += length + 1;
	}
}

int setting_text_parse(
	const struct setting *one, const char *value, char *ret, const char **ret_wrong)
{
	struct stored to = {.room = (size_t)one->max};
	size_t length = strnlen(value, (size_t)one->max + 1);

	assert(to.room < sizeof(to.text));
	if (length < (size_t)one->min || length > to.room)
		to.wrong = *value ? "wrong length" : "empty";
	for (size_t i = 0; i < length && !to.wrong; i++)
		if (iscntrl((unsigned char)value[i]))
			to.wrong = "control characters";
	if (!to.wrong && setting_text_bare(value, &to.wrong) == 0) {
		if (strcmp(one->unit, "path") == 0)
			path_append(&to, value, length);
		else if (strcmp(one->unit, "paths") == 0)
			paths_append(&to, value);
		else
			append(&to, value, length);
	}
	if (to.wrong) {
		*ret_wrong = to.wrong;
		return -EINVAL;
	}
	memset(ret, 0, to.room + 1);
	memcpy(ret, to.text, to.used);
	return 0;
}
