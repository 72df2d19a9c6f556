/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One setting, described: the table behind settings.c, settings_file.c and settings_print.c. Nobody
 * else includes this. Constant; any thread.
 */
#ifndef CONFIG_SETTING_H
#define CONFIG_SETTING_H

#include "config/settings.h"

enum setting_type { SETTING_TEXT, SETTING_SIZE, SETTING_NUMBER, SETTING_FLAG, SETTING_CHOICE };

struct setting {
	const char *section;
	const char *key;
	enum setting_type type;
	const char *fallback;
	const char *choices; /* "a|b|c"; "" unless a CHOICE */
	int64_t min;         /* TEXT: shortest length */
	int64_t max;         /* TEXT: longest length */
	const char *unit;
	const char *help;
	size_t offset; /* of its field in struct settings */
};

extern const struct setting setting_table[];
extern const unsigned setting_count;

#define SETTING_CHOICE_BYTES 32

/* Index in setting_table, or -1 with a hint in `hint` ("did you mean rail.devices?"). */
int setting_find(const char *section, const char *key, char *hint, size_t hint_bytes);

/* Parses `value` into its field of `s`. 0, or -EINVAL with "what is wrong; what to do" in `why`. */
int setting_parse(const struct setting *one, const char *value, struct settings *s, char *why,
	size_t why_bytes);

/* Copies choice `index` of "a|b|c" to `ret`; false: there are fewer. */
bool setting_choice_copy(const char *choices, int index, char ret[SETTING_CHOICE_BYTES]);

/* "4 to 1024", "1 to 107 characters", "auto, busy or adaptive", ... */
void setting_range(const struct setting *one, char *ret, size_t ret_bytes);

#endif
