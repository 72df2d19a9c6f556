/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion channels and asynchronous events: descriptors that the program reads. Each is a stream
 * socket instead of a pipe, because sending to a closed end must not raise SIGPIPE. The NIC's
 * thread sends, under nic->lock; program threads open, close and take back unread events.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"

#define EVENTS_MAX 1024

/*
 * List of all channels. They are never freed but reused: a context may still point to a closed one.
 */
static struct uv_channel *channels;
/* innermost lock: its holder takes no other one */
static pthread_mutex_t channels_lock = PTHREAD_MUTEX_INITIALIZER;

struct uv_channel *uv_channel_open(void)
{
	struct uv_channel *channel;
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return NULL;
	pthread_mutex_lock(&channels_lock);
	for (channel = channels; channel && channel->read_fd >= 0; channel = channel->next)
		;
	if (!channel && (channel = calloc(1, sizeof(*channel)))) {
		channel->next = channels;
		channels = channel;
	}
	if (channel) {
		channel->read_fd = fds[0];
		channel->write_fd = fds[1];
	}
	pthread_mutex_unlock(&channels_lock);
	if (!channel) {
		close(fds[0]);
		close(fds[1]);
		return NULL;
	}
	uv_fd_note(channel->read_fd, NULL);
	return channel;
}

struct uv_channel *uv_channel_find(int fd)
{
	struct uv_channel *channel;

	pthread_mutex_lock(&channels_lock);
	for (channel = channels; channel && channel->read_fd != fd; channel = channel->next)
		;
	pthread_mutex_unlock(&channels_lock);
	return channel;
}

bool uv_channel_close(int fd)
{
	int other = -1;

	pthread_mutex_lock(&channels_lock);
	for (struct uv_channel *channel = channels; channel; channel = channel->next) {
		if (channel->read_fd != fd)
			continue;
		other = channel->write_fd;
		channel->read_fd = channel->write_fd = -1;
	}
	pthread_mutex_unlock(&channels_lock);
	if (other >= 0)
		close(other);
	return other >= 0;
}

/*
 * Sends an event. An arm gives one event, so the socket does not fill up; if it does, the event is
 * dropped.
 */
void uv_channel_send(struct uv_channel *channel, const void *event, size_t bytes)
{
	pthread_mutex_lock(&channels_lock);
	if (channel->write_fd >= 0 &&
		send(channel->write_fd, event, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
		errno != EAGAIN && errno != EPIPE)
		perror("soft-connectx: sending an event to the program");
	pthread_mutex_unlock(&channels_lock);
}

/*
 * DESTROY_CQ returns the number of events that were read, and libibverbs waits until that number is
 * acknowledged. Events still in the socket were not read, so they are removed from it.
 */
uint32_t uv_channel_take_back(struct uv_channel *channel, uint64_t key, size_t bytes)
{
	uint8_t events[EVENTS_MAX * sizeof(struct ib_uverbs_async_event_desc)];
	uint32_t taken = 0;
	ssize_t got = 0;

	pthread_mutex_lock(&channels_lock);
	if (channel->read_fd >= 0)
		got = recv(channel->read_fd, events, sizeof(events) / bytes * bytes, MSG_DONTWAIT);
	for (ssize_t at = 0; at + (ssize_t)bytes <= got; at += (ssize_t)bytes) {
		uint64_t first;

		memcpy(&first, events + at, sizeof(first));
		if (first == key)
			taken++;
		else if (send(channel->write_fd, events + at, bytes, MSG_NOSIGNAL) < 0)
			perror("soft-connectx: sending an event to the program");
	}
	pthread_mutex_unlock(&channels_lock);
	return taken;
}

int uv_create_channel(struct uv_context *context, struct uv_command *command)
{
	struct uv_channel *channel = uv_channel_open();
	struct ib_uverbs_create_comp_channel_resp core;

	(void)context;
	if (!channel)
		return EMFILE;
	core.fd = (uint32_t)channel->read_fd;
	uv_answer(command->core_out, command->core_out_bytes, &core, sizeof(core));
	return 0;
}

void uv_async(struct uv_context *context, uint64_t element, uint32_t type)
{
	struct ib_uverbs_async_event_desc event = {.element = element, .event_type = type};

	if (context->async)
		uv_channel_send(context->async, &event, sizeof(event));
}
