/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings of one engine. struct settings has one field `section_key` for each line of
 * settings.def. main.c fills it at start, with one thread; afterwards it is constant and any thread
 * may read it.
 *
 * Order of calls at start: settings_default(), settings_load() for the file, settings_override()
 * for each `--set section.key=value`, settings_check(). A function that refuses a value writes the
 * reason into `err`: one line for each problem, at most 16, which says where the problem is, what
 * is wrong and what to do:
 *
 *   engine.conf:7: cluster.port = 99999: out of range; give 1 to 65535
 *
 * Example:
 *   struct settings settings;
 *   char err[SETTINGS_ERR_BYTES];
 *
 *   settings_default(&settings);
 *   if (settings_load(&settings, "/etc/peercache/engine.conf", err, sizeof(err)) < 0 ||
 *       settings_override(&settings, "rail.devices=mlx5_0", err, sizeof(err)) < 0)
 *           fprintf(stderr, "%s\n", err);
 */
#ifndef CONFIG_SETTINGS_H
#define CONFIG_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "config/limits.h"
#include "config/log.h"

/* bytes of text that suffice for all problems that settings_load() reports */
#define SETTINGS_ERR_BYTES 4096

/*
 * Values of the CHOICE settings, in the order of their choices. The value of log.level is an enum
 * log_level.
 */
enum { POLLING_AUTO, POLLING_BUSY, POLLING_ADAPTIVE };
enum { LINK_SHM, LINK_TCP };
enum { SECURITY_AUTO, SECURITY_REQUIRED, SECURITY_NONE };
enum { CLIENT_VERBS_NO, CLIENT_VERBS_SAME_USER, CLIENT_VERBS_YES };
enum { ROLE_PEER, ROLE_STORAGE };
enum { WRITE_LOCAL, WRITE_STORAGE, WRITE_BOTH };
enum { CLIENTS_CLEAR_GROUP, CLIENTS_CLEAR_NO, CLIENTS_CLEAR_ALL };
enum { VALIDATE_AUTO, VALIDATE_LEASE, VALIDATE_TAIL, VALIDATE_CRC };

#define SETTING_FIELD_TEXT(name, max) char name[(max) + 1]
#define SETTING_FIELD_SIZE(name, max) uint64_t name
#define SETTING_FIELD_NUMBER(name, max) int64_t name
#define SETTING_FIELD_FLAG(name, max) bool name
#define SETTING_FIELD_CHOICE(name, max) int name

#define SETTINGS_GIVEN_WORDS 2

/*
 * Has one field per setting: engine_pool_bytes, rail_devices, ...; read-only after main.c has
 * filled them.
 */
struct settings {
	/* bit per line of settings.def: the file or --set has set it; see settings_given() */
	uint64_t given[SETTINGS_GIVEN_WORDS];
#define SETTING(section, key, type, fallback, min, max, unit, help)                                \
	SETTING_FIELD_##type(section##_##key, max);
#include "config/settings.def"
#undef SETTING
};

/*
 * Sets every field to its default. Returns 0, or -EINVAL when a default in settings.def is outside
 * its own range.
 */
int settings_default(struct settings *ret);

/*
 * Reads the file at `path` and stores the settings that it contains in `s`; the other fields keep
 * their values. Returns 0, -EINVAL (`err` has every problem found), or the negative errno of
 * opening or reading the file. `s` is unchanged on failure.
 */
int settings_load(struct settings *s, const char *path, char *err, size_t err_bytes);

/*
 * Sets one setting from text. Returns 0, -ENOENT (unknown setting) or -EINVAL (value not
 * accepted). Six parameters: a setting has section, key and value, and an error text its length.
 */
int settings_set(struct settings *s, const char *section, const char *key, const char *value,
	char *err, size_t err_bytes);

/* Sets one setting from the text of a command line option: "section.key=value". */
int settings_override(struct settings *s, const char *text, char *err, size_t err_bytes);

/*
 * Checks names, addresses and settings that depend on each other, once all settings are known.
 * Returns 0, or -EINVAL with the reason in `err`.
 */
int settings_check(const struct settings *s, char *err, size_t err_bytes);

/* True with rail.devices = none: the engine has no rails and no pages. */
bool settings_seed_only(const struct settings *s);

/* True if the file or --set has set it; false for a default and for an unknown setting. */
bool settings_given(const struct settings *s, const char *section, const char *key);

/*
 * The values of all settings as a JSON object by section.key: numbers, booleans and texts; sizes in
 * bytes. The caller frees it. NULL: no memory.
 */
char *settings_json(const struct settings *s);

/* Prints every setting with its default, range and meaning, as the text of --help. */
void settings_help(FILE *out);

#endif
