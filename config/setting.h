/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The description of one setting, and the table of all settings. Included only by settings.c,
 * settings_file.c, settings_print.c and a test, which prints the table of config/SETTINGS.md. The
 * table is constant: any thread may read it.
 */
#ifndef CONFIG_SETTING_H
#define CONFIG_SETTING_H

#include "config/settings.h"

enum setting_type { SETTING_TEXT, SETTING_SIZE, SETTING_NUMBER, SETTING_FLAG, SETTING_CHOICE };

struct setting {
	const char *section;
	const char *key;
	enum setting_type type;
	const char *fallback; /* default value of the setting, as text */
	const char *choices;  /* accepted words of a CHOICE: "a|b|c"; else "" */
	int64_t min;          /* smallest value; for a TEXT the shortest length */
	int64_t max;          /* largest value; for a TEXT the longest length */
	const char *unit;     /* unit of the value: "ms", "bytes", "list", ...; "": none */
	const char *help;     /* what the setting means, for --help */
	size_t offset;        /* offset of the setting's field in struct settings */
};

extern const struct setting setting_table[];
extern const unsigned setting_count;

#define SETTINGS_MAX (64u * SETTINGS_GIVEN_WORDS) /* lines of settings.def, at most */

#define SETTING_TEXT_BYTES 1024 /* bytes of the longest TEXT, with the terminating zero */

/* bytes of the longest word of a CHOICE, with the terminating zero */
#define SETTING_CHOICE_BYTES 32

/*
 * Returns the index of the setting in setting_table, or -1 with a suggestion in `hint` ("did you
 * mean rail.devices?").
 */
int setting_find(const char *section, const char *key, char *hint, size_t hint_bytes);

/*
 * Parses `value` and stores it in the field of `s`. Returns 0, or -EINVAL with "what is wrong; what
 * to do" in `why`; the field is then unchanged.
 */
int setting_parse(const struct setting *one, const char *value, struct settings *s, char *why,
	size_t why_bytes);

/*
 * setting_text.c. Parses the value of a TEXT and stores it in `ret`, which has room for one->max
 * bytes and a zero. Of the units "path" and "paths" (comma separated) the value is absolute, and
 * `~/` becomes $HOME. Returns 0, or -EINVAL with *ret_wrong: "what is
 * wrong", or "what is wrong; what to do".
 */
int setting_text_parse(
	const struct setting *one, const char *value, char *ret, const char **ret_wrong);
/*
 * 0, or -EINVAL with *ret_wrong: around the value are quotes or a comment, which would become part
 * of it.
 */
int setting_text_bare(const char *value, const char **ret_wrong);
/* True if the value of the setting may go on in the next line, after a comma. */
bool setting_is_list(const struct setting *one);

/* Copies word number `index` of "a|b|c" to `ret`. Returns false when there are fewer words. */
bool setting_choice_copy(const char *choices, int index, char ret[SETTING_CHOICE_BYTES]);

/*
 * Writes the accepted values of a setting as text: "4 to 1024", "1 to 107 characters", "auto, busy
 * or adaptive", ...
 */
void setting_range(const struct setting *one, char *ret, size_t ret_bytes);

#endif
