/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metrics thread of an engine without rails and members: the test's thread is the control plane
 * and publishes snapshots, snapshot_take() is a stub, and clients are sockets that block.
 */
#ifndef TESTS_METRICS_WORLD_H
#define TESTS_METRICS_WORLD_H

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/log.h"
#include "engine/control/base/control.h"
#include "engine/control/observe/health_inner.h"
#include "engine/control/observe/observe.h"
#include "engine/control/loop.h"
#include "numa/clock.h"
#include "tests/port_free.h"
#include "tests/unit/control/observe/python_world.h"
#include "tests/unit/control/observe/snapshot_world.h"

#define ANSWER_BYTES (1u << 20)
#define PATIENCE_S 30 /* for an answer: a failure, not a measurement */

static struct control engine;
static struct settings settings;
static struct snapshot sample;
static struct moments moments;
static unsigned files;

static int rival = -1; /* a bound socket that listens as soon as another one was bound */

/* In place of the C library's. */
int bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	int rc = (int)syscall(SYS_bind, fd, address, bytes);

	if (rc == 0 && rival >= 0)
		assert_int_equal(listen(rival, 1), 0);
	return rc;
}

void snapshot_take(struct control *control, struct snapshot *ret)
{
	assert_ptr_equal(control, &engine);
	*ret = sample;
	moments_compare(&moments, ret);
}

static unsigned entries(const char *folder)
{
	DIR *d = opendir(folder);
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/*
 * Waits until the process has this number of entries in /proc/self/task. pthread_join() may return
 * before the kernel has removed the thread's entry.
 */
static void threads_become(unsigned wanted)
{
	for (unsigned i = 0; i < 60000 && entries("/proc/self/task") != wanted; i++)
		usleep(1000);
	assert_int_equal(entries("/proc/self/task"), wanted);
}

/* Entries in /proc/self/task of this program when no metrics thread runs. */
static unsigned threads_alone;

static void *thread_number(void *context)
{
	*(int *)context = gettid();
	return NULL;
}

/* A sanitizer starts a thread of its own with the first thread of the program. */
static void first_thread(void)
{
	pthread_t thread;
	char path[64];
	int number;

	assert_int_equal(pthread_create(&thread, NULL, thread_number, &number), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	snprintf(path, sizeof(path), "/proc/self/task/%d", number);
	while (access(path, F_OK) == 0)
		usleep(1000);
}

static int setup_all(void **state)
{
	first_thread();
	threads_alone = entries("/proc/self/task");
	(void)python_start(); /* here, because the tests count the descriptors */
	return 0;
}

/* A bound socket of this port, or of a free one if it is 0. */
static int bound(int family, uint16_t *port)
{
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(*port)};
	struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(*port)};
	struct sockaddr *address =
		family == AF_INET ? (struct sockaddr *)&four : (struct sockaddr *)&six;
	socklen_t bytes = family == AF_INET ? sizeof(four) : sizeof(six);
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	six.sin6_addr = in6addr_loopback;
	if (fd < 0)
		return -1;
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, address, bytes) < 0) {
		close(fd);
		return -1;
	}
	assert_int_equal(getsockname(fd, address, &bytes), 0);
	*port = ntohs(family == AF_INET ? four.sin_port : six.sin6_port);
	return fd;
}

/* A port that no other test has, in that family, until the next call. */
static uint16_t free_port(int family)
{
	static int reserved = -1;
	uint16_t port, kept;
	int fd;

	close(reserved);
	kept = port = port_free(&reserved);
	fd = bound(family, &kept);
	if (fd < 0)
		skip(); /* this host has not the family */
	close(fd);
	return port;
}

static int setup(void **state)
{
	memset(&engine, 0, sizeof(engine));
	sample_healthy(&sample);
	sample.taken_ns = clock_now_ns();
	settings = (struct settings){
		.cluster_address = "127.0.0.1", .metrics_ready_members = 1, .metrics_dashboard = 1};
	settings.metrics_port = free_port(AF_INET);
	engine.settings = &settings;
	engine.rails = engine.plan.rails = 2;
	engine.plan.rail[0].core = engine.plan.rail[1].core = -1;
	engine.snapshots = snapshots_open();
	assert_non_null(engine.snapshots);
	files = entries("/proc/self/fd");
	return 0;
}

static int teardown(void **state)
{
	metrics_close(&engine);
	assert_null(engine.metrics);
	snapshots_close(engine.snapshots);
	return 0;
}

static void publish(void)
{
	sample.taken_ns = clock_now_ns();
	snapshot_take(&engine, snapshots_writing(engine.snapshots));
	snapshots_publish(engine.snapshots);
}

/* Both steps of control_open(). */
static int begin(void)
{
	int rc = metrics_port_open(&engine);

	return rc < 0 ? rc : metrics_open(&engine);
}

static void serve(void)
{
	assert_int_equal(begin(), 0);
	assert_non_null(engine.metrics);
}

/* A connection to the server, or -1. */
static int dial(int family)
{
	struct sockaddr_in6 six = {
		.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)settings.metrics_port)};
	struct sockaddr_in four = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)settings.metrics_port)};
	const struct timeval patience = {.tv_sec = PATIENCE_S};
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), rc;

	four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	six.sin6_addr = in6addr_loopback;
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	rc = family == AF_INET ? connect(fd, (struct sockaddr *)&four, sizeof(four))
			       : connect(fd, (struct sockaddr *)&six, sizeof(six));
	if (rc == 0)
		return fd;
	close(fd);
	return -1;
}

/* The answer to a GET; the caller frees it. NULL: there is none. */
static char *ask(int family, const char *path)
{
	char *text = calloc(1, ANSWER_BYTES), request[256];
	int fd = dial(family), bytes;
	size_t got = 0;
	ssize_t n = 1;

	bytes = snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path);
	if (fd >= 0 && send(fd, request, (size_t)bytes, MSG_NOSIGNAL) == bytes)
		while (got < ANSWER_BYTES - 1 && n > 0) {
			n = recv(fd, text + got, ANSWER_BYTES - 1 - got, 0);
			got += n > 0 ? (size_t)n : 0;
		}
	if (fd >= 0)
		close(fd);
	if (got && n == 0)
		return text;
	free(text);
	return NULL;
}

/* Asserts the status of an answer and that its body, which is returned, is whole. */
static const char *body(const char *text, unsigned status)
{
	const char *start, *length;
	unsigned got;

	assert_non_null(text);
	assert_int_equal(sscanf(text, "HTTP/1.1 %u ", &got), 1);
	assert_int_equal(got, status);
	start = strstr(text, "\r\n\r\n");
	length = strstr(text, "\r\nContent-Length: ");
	assert_non_null(start);
	assert_true(length && length < start);
	assert_int_equal(strtoul(length + 18, NULL, 10), strlen(start + 4));
	return start + 4;
}

static void line(const char *path, unsigned status, const char *expected)
{
	char *text = ask(AF_INET, path);

	assert_string_equal(body(text, status), expected);
	free(text);
}

#endif
