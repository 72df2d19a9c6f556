/* SPDX-License-Identifier: Apache-2.0 */
/* An address and its port as people write them, and as cluster.seeds takes them. Any thread. */
#ifndef CONFIG_ADDRESS_TEXT_H
#define CONFIG_ADDRESS_TEXT_H

#include <stdio.h>
#include <string.h>

#include "config/limits.h"

#define ADDRESS_TEXT_BYTES (NAME_BYTES_MAX + 8)

/* Writes "1.2.3.4:5", "[::1]:5" or "name:5". Returns ret_text. */
static inline const char *address_text(
	const char *host, unsigned port, char ret_text[ADDRESS_TEXT_BYTES])
{
	snprintf(ret_text, ADDRESS_TEXT_BYTES, strchr(host, ':') ? "[%.60s]:%u" : "%.63s:%u", host,
		port & 0xffff);
	return ret_text;
}

#endif
