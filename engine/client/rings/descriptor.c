/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor of a channel, pc_channel_fd(): an epoll instance with the channel's wake socket,
 * which an engine that exits closes, and a timer. While batches are in flight it listens to the
 * socket, and the timer has the time of the next step; a timer in the past makes the descriptor
 * readable. In a child of fork() the instance is the parent's, and is left alone. Channel thread.
 */
#include "engine/client/attach/attach.h"
#include "engine/client/error.h"
#include "engine/client/rings/channel.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

static pthread_once_t ended_once = PTHREAD_ONCE_INIT;
static int ended = -1; /* an eventfd that is always readable: what closed channels leave behind */

static void ended_make(void)
{
	ended = eventfd(1, EFD_CLOEXEC);
}

static int descriptor_add(const struct pc_channel *ch, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events};

	return epoll_ctl(ch->descriptor, EPOLL_CTL_ADD, fd, &event);
}

int descriptor_open(struct pc_channel *ch)
{
	int rc;

	pthread_once(&ended_once, ended_make);
	ch->timer_ns = DESCRIPTOR_IDLE;
	ch->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	ch->descriptor = epoll_create1(EPOLL_CLOEXEC);
	if (ended >= 0 && ch->timer >= 0 && ch->descriptor >= 0 &&
		!descriptor_add(ch, ch->timer, EPOLLIN))
		return 0;
	rc = error_set(-errno,
		"cannot make a descriptor for a channel: %s; raise the limit of open files",
		strerror(errno));
	descriptor_close(ch);
	return rc;
}

void descriptor_close(struct pc_channel *ch)
{
	if (ch->descriptor >= 0 && !ch->pc->inherited)
		(void)descriptor_add(ch, ended, EPOLLIN); /* ends waits for the descriptor */
	if (ch->timer >= 0)
		close(ch->timer);
	if (ch->descriptor >= 0)
		close(ch->descriptor);
	ch->timer = ch->descriptor = -1;
	ch->listens = false;
}

void descriptor_listen(struct pc_channel *ch)
{
	if (!ch->listens)
		ch->listens = !descriptor_add(ch, ch->wake, EPOLLIN);
}

void descriptor_mute(struct pc_channel *ch)
{
	if (ch->listens)
		(void)epoll_ctl(ch->descriptor, EPOLL_CTL_DEL, ch->wake, NULL);
	ch->listens = false;
}

void descriptor_wake_at(struct pc_channel *ch, uint64_t at_ns, uint64_t now_ns)
{
	struct itimerspec at = {.it_value = {.tv_sec = (time_t)(at_ns / 1000000000u),
					.tv_nsec = (long)(at_ns % 1000000000u)}};

	/* an earlier time that is yet to come does as well */
	if (at_ns == ch->timer_ns ||
		(at_ns != DESCRIPTOR_IDLE && ch->timer_ns <= at_ns && ch->timer_ns > now_ns))
		return;
	ch->timer_ns = at_ns;
	(void)timerfd_settime(ch->timer, TFD_TIMER_ABSTIME, &at, NULL);
}
