/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text in a buffer that grows, and JSON in it: commas come by themselves. One thread at a time.
 * Without memory the text ends in -ENOMEM.
 */
#ifndef CONTROL_JSON_INNER_H
#define CONTROL_JSON_INNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct json {
	FILE *f;    /* for text of other kinds; not NULL from json_begin() to json_end() */
	bool comma; /* the next member of the current object or array needs a comma before it */
	char *text;
	size_t bytes;
};

/* 0 or -ENOMEM; then there is no json_end(). */
int json_begin(struct json *j);
/* 0, and the caller frees *ret_text, zero-terminated, of *ret_bytes characters; or -ENOMEM. */
int json_end(struct json *j, char **ret_text, size_t *ret_bytes);

/*
 * One member of an object, or with the name NULL one element of an array. `bracket` of json_open()
 * opens an object or an array; that of json_close() may close several.
 */
void json_open(struct json *j, const char *name, const char *bracket);
void json_close(struct json *j, const char *bracket);
/* Bytes above 0x7e are written as Latin-1: names from the network may not be UTF-8. */
void json_string(struct json *j, const char *name, const char *value);
void json_number(struct json *j, const char *name, int64_t value);
void json_count(struct json *j, const char *name, uint64_t value);
void json_flag(struct json *j, const char *name, bool value);
void json_hex(struct json *j, const char *name, uint64_t value); /* 16 digits, a string */
/* JSON as it is. */
void json_raw(struct json *j, const char *name, const char *value);
void json_real(struct json *j, const char *name, double value);

/* Writes a number for JSON and Prometheus: whole numbers stay whole. */
void number_print(FILE *f, double value);

#endif
