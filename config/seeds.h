/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of engines to join, as text: one of them, and the file cluster.seeds_file. Pure but for
 * reading the file, which may block. Any thread.
 */
#ifndef CONFIG_SEEDS_H
#define CONFIG_SEEDS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "config/limits.h"

/* The address of an engine to join. */
struct seed_address {
	char host[NAME_BYTES_MAX]; /* address or name; "": none */
	uint16_t port;
};

/*
 * Parses "host:port", "[v6]:port", "host" or "v6"; modifies `text`. `fallback`: the port if `text`
 * has none. Returns 0 or -EINVAL.
 */
int seed_parse(char *text, uint16_t fallback, struct seed_address *ret);

#define SEEDS_FILE_BYTES_MAX (1u << 20)
#define SEEDS_FILE_ADDRESSES_MAX 16384u /* further ones are not used */
#define SEEDS_FILE_BAD_MAX 100u         /* words that are no address */

/*
 * Opens the file and tells which it is. Returns a descriptor, which the caller closes, or -errno:
 * also for what is no regular file, or larger than SEEDS_FILE_BYTES_MAX.
 */
int seeds_text_open(const char *path, struct stat *ret);
/*
 * Reads at most `bytes` of it. Returns 0 or -errno. *ret_text: the content, ended by a zero byte;
 * the caller frees it.
 */
int seeds_text_read(int fd, size_t bytes, char **ret_text);

/* The addresses of a text, and who is informed of the words that are none. */
struct seeds_text {
	struct seed_address *address; /* the caller's, with room for SEEDS_FILE_ADDRESSES_MAX */
	unsigned count;               /* of them that are set */
	unsigned bad;                 /* words that are no address */
	/* called for each of these; at SEEDS_FILE_BAD_MAX nothing is read on: it is another file */
	void (*on_bad)(struct seeds_text *text, const char *word, unsigned line);
	void *context;
};

/*
 * Fills `address`, `count` and `bad`. Words are separated by spaces, commas and ends of lines; a
 * number sign begins a comment. Modifies the text. `fallback`: as of seed_parse().
 */
void seeds_text_parse(struct seeds_text *ret, char *text, uint16_t fallback);

#endif
