/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of pre-shared keys (cluster.psk_file): one key of 64 hexadecimal digits in a line, two
 * at most; # starts a comment. An engine dials with the first one and takes both, so that a key is
 * changed without a pause: add the new one behind the old one on all engines, then put it first,
 * then take the old one out. Any thread.
 */
#ifndef CONFIG_PSK_H
#define CONFIG_PSK_H

#include <stdint.h>

#define PSK_BYTES 32
#define PSK_FILE_KEYS 2
#define PSK_WHY_BYTES 400

struct psk {
	uint8_t bytes[PSK_BYTES];
	uint64_t id; /* its number: a hash of the key, which tells nothing about it */
};

struct psk_file {
	struct psk key[PSK_FILE_KEYS];
	unsigned count;
};

/*
 * Reads the file. Returns 0 or -errno, and `why` has a line with the remedy. A file that others
 * than its owner and group can read, or that is not the owner's own, is refused.
 */
int psk_file_read(const char *path, struct psk_file *ret, char why[PSK_WHY_BYTES]);

/* Makes a new file with a new random key. Returns its number, or 0: errno says why. */
uint64_t psk_file_make(const char *path);

#endif
