/* SPDX-License-Identifier: Apache-2.0 */
/* See seeds.h. */
#include "config/seeds.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int seed_parse(char *text, uint16_t fallback, struct seed_address *ret)
{
	char *host = text, *port = NULL, *end;
	long number = fallback;

	if (*text == '[') {
		host = text + 1;
		end = strchr(host, ']');
		if (!end || (end[1] != '\0' && end[1] != ':'))
			return -EINVAL;
		port = end[1] ? end + 2 : NULL;
		*end = '\0';
	} else if (strchr(text, ':') && strchr(text, ':') == strrchr(text, ':')) {
		port = strchr(text, ':') + 1;
		port[-1] = '\0';
	}
	if (port) {
		number = strtol(port, &end, 10);
		if (*port < '0' || *port > '9' || *end || number < 1 || number > 65535)
			return -EINVAL;
	}
	if (!*host || strlen(host) >= sizeof(ret->host))
		return -EINVAL;
	if (strchr(host, ':') && inet_pton(AF_INET6, host, &(struct in6_addr){0}) != 1)
		return -EINVAL;
	memset(ret, 0, sizeof(*ret));
	memcpy(ret->host, host, strlen(host));
	ret->port = (uint16_t)number;
	return 0;
}

int seeds_text_open(const char *path, struct stat *ret)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, ret) < 0)
		rc = -errno;
	else if (!S_ISREG(ret->st_mode))
		rc = S_ISDIR(ret->st_mode) ? -EISDIR : -EINVAL;
	else if (ret->st_size > (off_t)SEEDS_FILE_BYTES_MAX)
		rc = -EFBIG;
	if (rc == 0)
		return fd;
	close(fd);
	return rc;
}

int seeds_text_read(int fd, size_t bytes, char **ret_text)
{
	char *text = malloc(bytes + 1);
	size_t at = 0;

	if (!text)
		return -ENOMEM;
	while (at < bytes) {
		ssize_t n = read(fd, text + at, bytes - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			int rc = -errno;

			free(text);
			return rc;
		}
		if (n == 0)
			break;
		at += (size_t)n;
	}
	for (size_t i = 0; i < at; i++) /* a zero byte would end the text */
		text[i] = text[i] ? text[i] : '?';
	text[at] = '\0';
	*ret_text = text;
	return 0;
}

static void line_parse(struct seeds_text *ret, char *line, unsigned number, uint16_t fallback)
{
	char *rest = NULL;

	line[strcspn(line, "#\r")] = '\0';
	for (char *each = strtok_r(line, ", \t", &rest); each;
		each = strtok_r(NULL, ", \t", &rest)) {
		char given[NAME_BYTES_MAX * 2];

		if (ret->count == SEEDS_FILE_ADDRESSES_MAX || ret->bad == SEEDS_FILE_BAD_MAX)
			return;
		snprintf(given, sizeof(given), "%s", each);
		if (seed_parse(each, fallback, &ret->address[ret->count]) == 0) {
			ret->count++;
		} else {
			ret->bad++;
			ret->on_bad(ret, given, number);
		}
	}
}

void seeds_text_parse(struct seeds_text *ret, char *text, uint16_t fallback)
{
	unsigned number = 0;
	char *line;

	ret->count = ret->bad = 0;
	while ((line = strsep(&text, "\n")))
		line_parse(ret, line, ++number, fallback);
}
