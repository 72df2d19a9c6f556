/* SPDX-License-Identifier: Apache-2.0 */
/* The fake engine's end of the attach socket. Runs in the fake engine's thread, under its lock. */
#include "config/passed_fds.h"
#include "engine/client/rings/channel.h"
#include "tests/unit/client/fake_inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define STAGING_REGION(c) (500u + (c))
#define REPORT_TEXT "{\"fake\": true}"

void fake_drain(struct fake_channel *channel)
{
	struct channel_header *header = (struct channel_header *)(void *)channel->base;

	shm_store_release(&header->drained, 1);
	fake_wake(channel);
}

static void drop_channel(struct fake *f, unsigned c)
{
	struct fake_channel *channel = &f->channel[c];

	if (!channel->used)
		return;
	if (!f->no_drain)
		fake_drain(channel);
	munmap(channel->base, channel->bytes);
	close(channel->memfd);
	close(channel->wake);
	close(channel->wake_client);
	memset(channel, 0, sizeof(*channel));
	f->region[STAGING_REGION(c)].base = NULL;
}

void fake_hang_up(struct fake *f)
{
	if (f->connection >= 0)
		close(f->connection);
	f->connection = -1;
	if (f->stalled && f->stalled_fd >= 0)
		close(f->stalled_fd);
	f->stalled = false;
	f->held_ops = f->held_runs = f->held_count = 0;
	for (unsigned c = 0; c < FAKE_CHANNELS; c++)
		drop_channel(f, c);
	for (unsigned r = 0; r < REGIONS_MAX; r++) {
		if (f->region[r].base)
			munmap(f->region[r].base, f->region[r].bytes);
		f->region[r].base = NULL;
	}
}

static void open_channel(struct fake *f, struct attach_reply *reply, int *fds, unsigned *count)
{
	struct channel_layout l = channel_layout(FAKE_RAILS);
	struct channel_header *header;
	struct fake_channel *ch;
	unsigned c = 0;
	int ends[2];

	while (c < FAKE_CHANNELS && f->channel[c].used)
		c++;
	if (c == FAKE_CHANNELS || f->no_channels) {
		reply->status = -EBUSY;
		strcpy(reply->text, "no more channels");
		return;
	}
	ch = &f->channel[c];
	ch->bytes = l.staging + f->staging;
	ch->base = fake_memory(ch->bytes, &ch->memfd);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		abort();
	ch->wake = ends[0];
	ch->wake_client = ends[1];
	ch->used = true;
	header = (struct channel_header *)(void *)ch->base;
	header->magic = CHANNEL_MAGIC;
	header->version = ABI_VERSION + f->bad_channels;
	header->rails = FAKE_RAILS;
	header->compare_all = f->compare_all;
	for (unsigned r = 0; r < FAKE_RAILS; r++) {
		ring_consumer_init(
			&ch->ops[r], ch->base + l.op[r], OP_RING_SLOTS, sizeof(struct run_line));
		ring_producer_init(&ch->done[r], ch->base + l.done[r], DONE_RING_SLOTS,
			sizeof(struct run_done));
	}
	ring_consumer_init(&ch->ctl, ch->base + l.ctl, CTL_RING_SLOTS, sizeof(struct ctl_op));
	ring_producer_init(
		&ch->ctl_done, ch->base + l.ctl_done, CTL_DONE_SLOTS, sizeof(struct ctl_done));
	f->region[STAGING_REGION(c)].base = mmap(
		NULL, f->staging, PROT_READ | PROT_WRITE, MAP_SHARED, ch->memfd, (off_t)l.staging);
	f->region[STAGING_REGION(c)].bytes = f->staging;
	reply->a = c;
	reply->b = f->region_said ? f->region_said : STAGING_REGION(c);
	fds[0] = ch->memfd;
	fds[1] = ch->wake_client;
	*count = 2;
}

static void add_region(
	struct fake *f, const struct attach_request *request, int fd, struct attach_reply *reply)
{
	unsigned r = REGION_CLIENT_0;

	f->regions_added++;
	while (f->region[r].base)
		r++;
	if (fd < 0 || f->refuse_regions) {
		reply->status = f->refuse_regions ? -(int)f->refuse_regions : -EBADF;
		strcpy(reply->text, "this region is refused");
		return;
	}
	f->region[r].bytes = request->b;
	f->region[r].base =
		mmap(NULL, request->b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)request->a);
	reply->a = f->region_said ? f->region_said : r;
}

static int report(struct attach_reply *reply)
{
	int fd = memfd_create("report", MFD_CLOEXEC);

	reply->a = strlen(REPORT_TEXT);
	if (write(fd, REPORT_TEXT, strlen(REPORT_TEXT)) < 0)
		reply->status = -EIO;
	return fd;
}

static void answer(struct fake *f, const struct attach_request *request, int fd)
{
	struct attach_reply reply = {.magic = ATTACH_MAGIC,
		.version = f->version,
		.kind = request->kind,
		.serial = request->serial};
	int fds[ATTACH_FDS_MAX + 8], mine = -1;
	unsigned count = 0;
	struct iovec io = {.iov_base = &reply, .iov_len = sizeof(reply)};
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(ATTACH_FDS_MAX + 8)];
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};

	switch (request->kind) {
	case ATTACH_HELLO:
		f->hellos++;
		reply.a = f->rails_said;
		fds[count++] = f->status_fd;
		fds[count++] = f->control_kick;
		fds[count++] = f->shard_fd;
		for (unsigned r = 0; r < FAKE_RAILS; r++) {
			fds[count++] = f->pool_fd[r];
			fds[count++] = f->heads_fd[r];
			fds[count++] = f->kick[r];
		}
		if (f->pidfd >= 0)
			fds[count++] = f->pidfd;
		break;
	case ATTACH_CHANNEL_OPEN:
		f->opens++;
		open_channel(f, &reply, fds, &count);
		for (unsigned i = 0; i < f->surplus && count < ATTACH_FDS_MAX + 8; i++)
			fds[count++] = f->control_kick;
		break;
	case ATTACH_CHANNEL_CLOSE:
		f->closes++;
		fake_serve_rings(f); /* first serve the ops published before this request */
		drop_channel(f, (unsigned)request->a);
		break;
	case ATTACH_REGION_ADD: add_region(f, request, fd, &reply); break;
	case ATTACH_REGION_REMOVE:
		f->regions_removed++;
		munmap(f->region[request->a].base, f->region[request->a].bytes);
		f->region[request->a].base = NULL;
		break;
	case ATTACH_REPORT: fds[count++] = mine = report(&reply); break;
	}
	fds_attach(&message, control, fds, count);
	sendmsg(f->connection, &message, MSG_NOSIGNAL);
	if (mine >= 0)
		close(mine);
}

/* True if the test wants no answer to a request of this kind now. */
static bool stalls(const struct fake *f, unsigned kind)
{
	return (kind == ATTACH_REGION_ADD && f->stall_regions) ||
	       (kind == ATTACH_CHANNEL_OPEN && f->opens >= f->opens_max);
}

unsigned fake_serve_socket(struct fake *f)
{
	struct attach_request request;
	struct iovec io = {.iov_base = &request, .iov_len = sizeof(request)};
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(1)];
	struct msghdr message = {.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	int fd = -1;
	ssize_t got;

	if (f->connection < 0 && f->listener >= 0)
		f->connection = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
	if (f->connection < 0 || f->mute || (f->stalled && stalls(f, f->stalled_request.kind)))
		return 0;
	if (f->stalled) {
		f->stalled = false;
		answer(f, &f->stalled_request, f->stalled_fd);
		if (f->stalled_fd >= 0)
			close(f->stalled_fd);
		return 1;
	}
	got = recvmsg(f->connection, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (got < 0)
		return 0;
	if (got == 0) {
		fake_hang_up(f);
		return 1;
	}
	(void)fds_take(&message, &fd, 1);
	if (stalls(f, request.kind)) {
		f->stalled = true;
		f->stalled_request = request;
		f->stalled_fd = fd;
		return 1;
	}
	answer(f, &request, fd);
	if (fd >= 0)
		close(fd);
	return 1;
}
