/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of refusals: captured log lines, and engines played by hand over raw sockets.
 * A node is one control plane in the test's process.
 */
#ifndef TESTS_AGREE_WORLD_H
#define TESTS_AGREE_WORLD_H

#include "engine/abi/wire.h"
#include "tests/unit/control/test_rpc_nodes.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"

static char said[16384];

static int setup(void **state)
{
	nodes_setup(20, 300);
	log_test_capture(said, sizeof(said));
	return 0;
}

static int teardown(void **state)
{
	nodes_teardown();
	log_test_capture(NULL, 0);
	return 0;
}

/* ---- log lines ------------------------------------------------------------------------------- */

/* Returns the number of log lines that begin with "error" and contain all three texts. */
static inline unsigned lines_with(const char *a, const char *b, const char *c)
{
	unsigned lines = 0;

	for (char *line = said, *end; (end = strchr(line, '\n')); line = end + 1) {
		*end = '\0';
		lines += strncmp(line, "error", 5) == 0 && strstr(line, a) && strstr(line, b) &&
			 strstr(line, c);
		*end = '\n';
	}
	return lines;
}

static inline void expect_lines(unsigned want, const char *a, const char *b, const char *c)
{
	unsigned lines = lines_with(a, b, c);

	if (lines != want)
		fail_msg("%u lines with \"%s\", \"%s\", \"%s\", not %u, in:\n%s", lines, a, b, c,
			want, said);
}

/* ---- engines by hand ------------------------------------------------------------------------- */

/* Returns the first message that a node sends on the raw connection `fd`; NULL: none arrived. */
static inline Pc__Message *read_message(int fd)
{
	uint8_t frame[8192];
	size_t have = 0, more;
	uint32_t length = 0;

	while ((have < 4 || have < 4 + (size_t)length) &&
		(more = raw_read(fd, frame + have, sizeof(frame) - have, 1000))) {
		have += more;
		if (have >= 4) {
			memcpy(&length, frame, 4);
			length = ntohl(length);
		}
	}
	if (have < 4 + (size_t)length || !length)
		return NULL;
	return pc__message__unpack(NULL, length, frame + 4);
}

/*
 * Returns the wire version in the Hello that a node sends on the raw connection; 0: none arrived.
 */
static inline uint32_t hello_version(int fd)
{
	Pc__Message *message = read_message(fd);
	uint32_t version;

	if (!message)
		return 0;
	assert_int_equal(message->body_case, PC__MESSAGE__BODY_HELLO);
	version = message->hello->version;
	pc__message__free_unpacked(message, NULL);
	return version;
}

static inline int listen_raw(uint16_t *ret_port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
	*ret_port = ntohs(at.sin_port);
	return fd;
}

/* Accepts the next connection that a node dials to the test's listener. */
static inline int accept_raw(int listener)
{
	int fd = -1;

	assert_true(nodes_until((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0, 3000));
	return fd;
}

#endif
