/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings of one engine: struct settings has a field `section_key` for every line of
 * settings.def, and is constant once main.c has filled it. Start-up only, one thread.
 *
 * Order at start: settings_default(), settings_load() of the file, settings_override() for each
 * `--set section.key=value`, settings_check(). What refuses a value writes the reason into `err`,
 * one problem a line (16 at most), each saying where, what is wrong and what to do:
 *
 *   engine.conf:7: cluster.port = 99999: out of range; give a number from 1 to 65535
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

#define SETTINGS_ERR_BYTES 4096 /* room for every problem that settings_load() reports */

/* Values of CHOICE settings, in the order of their choices; log.level is an enum log_level. */
enum { POLLING_AUTO, POLLING_BUSY, POLLING_ADAPTIVE };
enum { LINK_SHM, LINK_TCP };
#define MODEL_MTU_MIN 256u /* model.mtu is an index: this << index bytes */

#define SETTING_FIELD_TEXT(name, max) char name[(max) + 1]
#define SETTING_FIELD_SIZE(name, max) uint64_t name
#define SETTING_FIELD_NUMBER(name, max) int64_t name
#define SETTING_FIELD_FLAG(name, max) bool name
#define SETTING_FIELD_CHOICE(name, max) int name

/* engine_pool_bytes, rail_devices, ...: read-only once main.c has filled it. */
struct settings {
#define SETTING(section, key, type, fallback, min, max, unit, help)                                \
	SETTING_FIELD_##type(section##_##key, max);
#include "config/settings.def"
#undef SETTING
};

/* Every setting as settings.def has it. 0; -EINVAL only if settings.def contradicts itself. */
int settings_default(struct settings *ret);

/*
 * Reads the file at `path` over what `s` has. 0, -EINVAL (every problem found is in `err`), or the
 * negative errno of opening or reading it. `s` is untouched on failure.
 */
int settings_load(struct settings *s, const char *path, char *err, size_t err_bytes);

/* One value. 0; -ENOENT: no such setting; -EINVAL: it does not take this value. */
int settings_set(struct settings *s, const char *section, const char *key, const char *value,
	char *err, size_t err_bytes);

/* The same from the text of a command line: "section.key=value". */
int settings_override(struct settings *s, const char *text, char *err, size_t err_bytes);

/* What no value alone can get wrong: settings that contradict each other. 0 or -EINVAL. */
int settings_check(const struct settings *s, char *err, size_t err_bytes);

/* The text of a CHOICE, for example ("rail", "polling", POLLING_BUSY) -> "busy"; NULL: none such.
 */
const char *settings_choice(const char *section, const char *key, int index);

/* Every setting with its default, range and meaning: for --help, and as the table of README.md. */
void settings_help(FILE *out);
void settings_table(FILE *out);

#endif
