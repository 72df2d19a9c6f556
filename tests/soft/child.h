/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote end in a process of its own: a forked child. It steps nothing: its service thread
 * answers while its main thread reads commands from a socket.
 */
#ifndef TESTS_SOFT_CHILD_H
#define TESTS_SOFT_CHILD_H

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/soft/pair.h"

struct child {
	pid_t pid;
	int socket;
	struct card card;
};

static inline void must_read(int fd, void *to, size_t bytes)
{
	for (size_t n = 0; n < bytes;) {
		ssize_t got = read(fd, (char *)to + n, bytes - n);

		if (got <= 0)
			_exit(3);
		n += (size_t)got;
	}
}

static inline void must_write(int fd, const void *from, size_t bytes)
{
	if (write(fd, from, bytes) != (ssize_t)bytes)
		_exit(4);
}

static inline struct dv_mr register_extra(struct end *end, bool with_file)
{
	int memfd = memfd_create("extra", MFD_CLOEXEC);
	uint8_t *at;
	struct dv_mr mr;

	if (ftruncate(memfd, 1 << 20))
		_exit(5);
	at = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	memset(at + 8192, 0xe7, 65536);
	/* the region starts at offset 8192 of the file: the reader must apply the offset */
	if (dv_mr_register(end->device,
		    &(struct dv_memory){.base = at + 8192,
			    .length = 65536,
			    .access = DV_REMOTE_READ,
			    .memfd = with_file ? memfd : -1,
			    .memfd_offset = 8192},
		    &mr))
		_exit(6);
	return mr;
}

/*
 * Commands of the parent:
 *   c card   connect                   e, n  register a region with, without a memfd; send its card
 *   f first  fill the memory           x     deregister that region
 *   v        answer 1 if the memory holds what the test of WRITEs wrote; anything else: quit
 */
static inline void child_main(const char *link, int socket)
{
	static struct end end;
	struct dv_mr extra = {0};
	struct card card;
	uint8_t command, byte;

	end_open(&end, link, 2);
	end_card(&end, &card);
	must_write(socket, &card, sizeof(card));
	for (;;) {
		must_read(socket, &command, 1);
		byte = 1;
		if (command == 'c') {
			must_read(socket, &card, sizeof(card));
			end_connect(&end, &card);
		} else if (command == 'f') {
			must_read(socket, &byte, 1);
			end_fill(&end, byte);
		} else if (command == 'e' || command == 'n') {
			extra = register_extra(&end, command == 'e');
			card = (struct card){.base = (uintptr_t)extra.base, .rkey = extra.rkey};
			must_write(socket, &card, sizeof(card));
		} else if (command == 'x') {
			if (dv_mr_deregister(end.device, &extra))
				_exit(7);
		} else if (command == 'v') {
			byte = end.memory[5000] == 0x77 && end.memory[4999] == 0 &&
			       end.memory[5000 + 99999] == 0x77 && end.memory[105000] == 0;
		} else {
			end_close(&end);
			_exit(0);
		}
		must_write(socket, &byte, 1);
	}
}

static inline void child_start(struct child *child, const char *link)
{
	int sockets[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
	child->pid = fork();
	assert_true(child->pid >= 0);
	if (child->pid == 0) {
		close(sockets[0]);
		child_main(link, sockets[1]);
	}
	close(sockets[1]);
	child->socket = sockets[0];
	must_read(child->socket, &child->card, sizeof(child->card));
}

static inline uint8_t child_tell(
	struct child *child, uint8_t command, const void *more, size_t bytes)
{
	uint8_t answer;

	must_write(child->socket, &command, 1);
	if (bytes)
		must_write(child->socket, more, bytes);
	must_read(child->socket, &answer, 1);
	return answer;
}

static inline struct card child_register(struct child *child, uint8_t command)
{
	struct card card;
	uint8_t done;

	must_write(child->socket, &command, 1);
	must_read(child->socket, &card, sizeof(card));
	must_read(child->socket, &done, 1);
	return card;
}

static inline void child_stop(struct child *child, bool kill_it)
{
	int status;

	if (kill_it)
		kill(child->pid, SIGKILL);
	else
		must_write(child->socket, "q", 1);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	if (!kill_it)
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(child->socket);
}

static inline void both_open(struct end *a, struct child *child, const char *link)
{
	struct card card;
	uint8_t first = 5;

	child_start(child, link);
	end_open(a, link, 2);
	end_card(a, &card);
	end_connect(a, &child->card);
	child_tell(child, 'c', &card, sizeof(card));
	child_tell(child, 'f', &first, 1);
}

static inline void expect_bytes(const struct end *a, size_t at, size_t remote_at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++) {
		size_t r = remote_at + i;

		if (a->memory[at + i] != (uint8_t)(5 + r * 7 + (r >> 8)))
			fail_msg("byte %zu of %zu is wrong", i, bytes);
	}
}

#endif
