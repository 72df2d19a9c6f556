/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel: opening and closing it, attaching it to a session, losing the engine and finding the
 * next one. It runs on the channel's thread; the list of the open channels and what the attach
 * thread has opened for them are under pc->lock.
 *
 * When the engine is lost, all pages in flight end as PC_GONE, but not before the engine has
 * drained the READs that may write the caller's memory, or has exited.
 */
#include "config/clock.h"
#include "config/limits.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/attach/attach.h"
#include "engine/client/attach/memory.h"
#include "engine/client/attach/session.h"
#include "engine/client/call/call.h"
#include "engine/client/constants.h"
#include "engine/client/device.h"
#include "engine/client/error.h"
#include "engine/client/lookup/lookup.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/page/key.h"
#include "engine/client/peercache.h"
#include "engine/client/read/read.h"
#include "engine/client/rings/rings.h"
#include "engine/client/write/write.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define OPEN_TIMEOUT_MS 10000u /* of pc_channel_open() */
/* longest wait for the answer to a close; a hanging engine closes the channel later */
#define CLOSE_TIMEOUT_MS 1000u

/* ---- the channels of the process ------------------------------------------------------------- */

/* Adds a channel to the open channels of the process. */
static void channels_add(struct pc *pc, struct pc_channel *ch)
{
	pthread_mutex_lock(&pc->lock);
	ch->next = pc->channels;
	pc->channels = ch;
	pthread_mutex_unlock(&pc->lock);
}

static void channels_remove(struct pc *pc, struct pc_channel *ch)
{
	struct pc_channel **at = &pc->channels;

	pthread_mutex_lock(&pc->lock);
	while (*at != ch)
		at = &(*at)->next;
	*at = ch->next;
	pthread_mutex_unlock(&pc->lock);
}

/* The attach thread looks at it. */
static void channel_session_set(struct pc_channel *ch, struct client_session *session)
{
	pthread_mutex_lock(&ch->pc->lock);
	ch->session = session;
	pthread_mutex_unlock(&ch->pc->lock);
}

/* ---- attaching to a session ------------------------------------------------------------------ */

/*
 * Attaches the channel to the session. On success the channel owns the caller's use of the session.
 */
static int channel_begin_session(
	struct pc_channel *ch, struct client_session *session, struct session_call *call)
{
	int rc = channel_map(ch, session, call);

	if (rc)
		return rc;
	channel_session_set(ch, session);
	ch->verify_all = ch->header->compare_all;
	verify_open(ch);
	ch->epochs_version = CLIENT_NONE;
	ch->limits_told = 0;
	ch->broken = false;
	ch->looked_ns = clock_monotonic_ns();
	map_forget(ch);
	/* the numbers of peers are those of this host's engine, which is another one now */
	memset(ch->peer_rest_until_ns, 0, 2 * NODES_MAX * sizeof(*ch->peer_rest_until_ns));
	return 0;
}

/*
 * Requests a channel from the engine, by `until_ns`, and attaches `ch` to it. Returns 0 or -errno.
 */
static int channel_attach(struct pc_channel *ch, uint64_t until_ns)
{
	struct session_call call = {.kind = ATTACH_CHANNEL_OPEN, .send_fd = -1};
	struct pc *pc = ch->pc;
	struct client_session *session = pc_session_get(pc);
	int rc;

	if (!session)
		return pc_no_session(pc);
	rc = pc_wire_lock(pc, until_ns);
	if (rc) {
		pc_session_put(pc, session);
		return rc;
	}
	call.timeout_ms = clock_rest_ms(until_ns);
	rc = session_ask(session, &call);
	if (!rc) {
		uint32_t id = (uint32_t)call.a;

		rc = channel_begin_session(ch, session, &call);
		session_close_fds(&call);
		if (rc)
			session_channel_close(session, id);
	}
	pthread_mutex_unlock(&pc->wire);
	if (rc) {
		if (shm_load(&session->dead))
			pc_session_end(pc, session);
		pc_session_put(pc, session);
	}
	return rc;
}

/*
 * Attaches `ch` to the channel that the attach thread has opened for it. Sends no request that is
 * waited for. False: there is none of the current session, or it cannot be used: the engine then
 * closes it, and the next attempt waits REATTACH_NS.
 */
static bool channel_adopt(struct pc_channel *ch)
{
	struct pc *pc = ch->pc;
	struct opened *opened;
	bool current;

	pthread_mutex_lock(&pc->lock);
	opened = ch->opened;
	ch->opened = NULL;
	current = opened && opened->session == pc->session;
	pthread_mutex_unlock(&pc->lock);
	if (current && !channel_begin_session(ch, opened->session, &opened->call)) {
		session_close_fds(&opened->call);
		free(opened);
		return true;
	}
	if (current && !pthread_mutex_trylock(&pc->wire)) {
		session_channel_close(opened->session, opened->call.a);
		pthread_mutex_lock(&pc->lock);
		pc->attacher.tried_ns = clock_monotonic_ns();
		pthread_mutex_unlock(&pc->lock);
		pthread_mutex_unlock(&pc->wire);
	}
	pc_opened_free(pc, opened);
	return false;
}

/* ---- losing the engine ----------------------------------------------------------------------- */

/* True if a NIC of the lost engine may still write into the caller's memory. */
static bool channel_reads_in_flight(const struct pc_channel *ch)
{
	for (uint32_t i = 0; i < ch->requests; i++) {
		const struct client_request *r = &ch->request[i];

		if (r->batch && request_writes_caller(r))
			return true;
	}
	return false;
}

void channel_tell_wait(const struct pc_channel *ch)
{
	fprintf(stderr,
		"peercache: process %d waits for the engine (pid %u) to release the buffers of READs in flight; the engine ends them or exits: is it stopped, or its host overloaded?\n",
		(int)getpid(), ch->session->status->pid);
}

/*
 * The engine has ended while a process had its devices: see abi/segment.h. That may be this one,
 * which registers memory in another thread.
 */
static void wait_for_lent(const struct status_segment *status)
{
	uint64_t ms = shm_load(&status->lent) ? shm_load(&status->lent_ms) : 0, until_ns;

	until_ns = clock_monotonic_ns() + (ms < LENT_MS_MAX ? ms : LENT_MS_MAX) * 1000000;
	while (clock_monotonic_ns() < until_ns)
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/*
 * The end of the session does not prove that READs have ended: the engine drains them after it
 * closes the socket, and the kernel closes a dying process's socket before or after it destroys the
 * process's QPs. The proof is `drained` in the channel segment, or the exit of the engine's
 * process. The engine bounds this wait; the client does not, because the caller's memory must not
 * be returned while a NIC may write it.
 */
static void wait_until_drained(const struct pc_channel *ch)
{
	struct pollfd p[2] = {
		{.fd = ch->session->pidfd, .events = POLLIN}, {.fd = ch->wake, .events = POLLIN}};
	uint64_t start_ns = clock_monotonic_ns();
	bool warned = false;

	while (!shm_load_acquire(&ch->header->drained)) {
		if (!warned && clock_monotonic_ns() - start_ns >= DRAIN_WARN_NS) {
			warned = true;
			channel_tell_wait(ch);
		}
		if (poll(p, 2, (int)(DRAIN_WARN_NS / 1000000)) <= 0)
			continue;
		if (p[0].revents) {
			wait_for_lent(ch->session->status);
			return;
		}
		if (p[1].revents && !channel_wake_clear(ch))
			/* the engine closed its end of the wake socket, so its process is
			 * exiting: from here on poll only its pidfd */
			p[1].fd = -1;
	}
}

/* Leaves the session. No READ into the caller's memory is in flight. */
static void channel_detach(struct pc_channel *ch)
{
	struct client_session *session = ch->session;

	/*
	 * A READ may still write into the segment: the engine's own mapping keeps its memory alive
	 */
	device_close(ch->device);
	ch->device = NULL;
	channel_unmap(ch);
	credit_forget(ch);
	channel_session_set(ch, NULL);
	pc_session_put(ch->pc, session);
}

void channel_lost(struct pc_channel *ch)
{
	struct client_session *session = ch->session;

	pc_session_end(ch->pc, session);
	if (channel_reads_in_flight(ch))
		wait_until_drained(ch);
	fetch_copies_end(ch, FETCH_WAIT_ALL);
	channel_end_batches(ch);
	channel_detach(ch);
	ch->moves++;
}

/* ---- the next engine ----------------------------------------------------------------------- */

bool channel_ready(struct pc_channel *ch, uint64_t deadline_ns)
{
	uint64_t now_ns = clock_monotonic_ns(), half_ns;

	if (ch->session) {
		if (!shm_load(&ch->session->dead) && now_ns - ch->looked_ns < LOOK_AROUND_NS)
			return true;
		ch->looked_ns = now_ns;
		if (!session_ended(ch->session))
			return true;
		channel_lost(ch);
		now_ns = clock_monotonic_ns();
	}
	if (channel_adopt(ch))
		return true;
	/* Wait for a session at most half of the time to the deadline; the pages get the other
	 * half. */
	half_ns = now_ns < deadline_ns ? (deadline_ns - now_ns) / 2 : 0;
	pc_reattach(ch->pc, now_ns + (half_ns < ATTACH_WAIT_NS ? half_ns : ATTACH_WAIT_NS));
	return channel_adopt(ch);
}

/* ---- the descriptor -------------------------------------------------------------------------- */

/* Listens for answers. False: some are here; as before a sleep, see wait.c. */
static bool channel_listen(struct pc_channel *ch)
{
	if (!channel_wake_clear(ch))
		ch->looked_ns = 0; /* the next step looks at the session's socket */
	if (unlikely(ch->ctl_napped))
		submit_ctl_hurry(ch);
	descriptor_listen(ch);
	shm_store(&ch->header->client_waits, 1);
	shm_fence_sleep();
	if (!wait_answered(ch))
		return true;
	shm_store(&ch->header->client_waits, 0);
	return false;
}

static bool channel_any_done(const struct pc_channel *ch)
{
	for (const struct pc_batch *b = ch->first; b; b = b->next)
		if (!b->left)
			return true;
	return false;
}

void channel_arm(struct pc_channel *ch)
{
	uint64_t at_ns = DESCRIPTOR_NOW;
	bool listens = false;

	if (ch->pc->inherited)
		return;
	while (ch->session && ch->first && !channel_any_done(ch)) {
		listens = channel_listen(ch);
		if (listens || !channel_step(ch))
			break;
	}
	if (!ch->first) {
		descriptor_mute(ch);
		at_ns = DESCRIPTOR_IDLE;
	} else if (listens) {
		at_ns = ch->now_ns + SLEEP_NS_MAX;
		if (ch->due_ns < at_ns)
			at_ns = ch->due_ns;
		if (device_busy(ch->device)) /* nothing else tells of the end of a copy */
			at_ns = ch->now_ns + DEVICE_LOOK_NS;
		if (ch->waits[0] && !ch->writers) /* pages that the step has queued again */
			at_ns = DESCRIPTOR_NOW;
	}
	descriptor_wake_at(ch, at_ns, ch->now_ns);
}

int pc_channel_fd(struct pc_channel *ch)
{
	int rc = 0;

	error_clear();
	if (!ch)
		return error_set(-EINVAL, "pc_channel_fd() needs a channel");
	if (ch->pc->inherited)
		return pc_no_session(ch->pc);
	if (ch->descriptor < 0)
		rc = descriptor_open(ch);
	if (rc)
		return rc;
	channel_arm(ch);
	return ch->descriptor;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* bytes of the mapping of a location cache: whole huge pages, which the kernel then aligns */
#define CACHE_BYTES                                                                                \
	((CACHE_SETS * sizeof(struct cache_set) + (2u << 20) - 1) & ~((size_t)(2u << 20) - 1))

/*
 * Makes an empty location cache. The kernel zeroes its pages when they are first used. They are
 * huge ones if it has them: else a channel's first 16,384 keys cost 1,300 page faults.
 */
static struct cache_set *cache_new(void)
{
	void *at =
		mmap(NULL, CACHE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	madvise(at, CACHE_BYTES, MADV_HUGEPAGE);
	return at;
}

static void channel_free(struct pc_channel *ch)
{
	while (ch->spare) {
		struct pc_batch *b = ch->spare;

		ch->spare = b->next;
		free(b);
	}
	free(ch->request);
	if (ch->cache)
		munmap(ch->cache, CACHE_BYTES);
	free(ch->memory);
	free(ch->peer_rest_until_ns);
	free(ch->map_memory.member);
	free(ch->map_memory.slot);
	free(ch);
}

int pc_channel_open(struct pc *pc, struct pc_channel **ret_channel)
{
	return pc_channel_open_within(pc, OPEN_TIMEOUT_MS, ret_channel);
}

int pc_channel_open_within(struct pc *pc, unsigned timeout_ms, struct pc_channel **ret_channel)
{
	uint64_t now_ns = clock_monotonic_ns(), wait_ns = timeout_ms * 1000000ull;
	struct pc_channel *ch;
	int rc = 0;

	error_clear();
	if (!pc || !ret_channel)
		return error_set(
			-EINVAL, "pc_channel_open() needs a session and a place for its result");
	ch = calloc(1, sizeof(*ch));
	if (!ch)
		return error_set(-ENOMEM, "cannot open a channel: out of memory");
	ch->pc = pc;
	ch->name_space = pc->name_space;
	ch->wake = ch->descriptor = ch->timer = -1;
	ch->memory_changes = UINT32_MAX;
	ch->cache = cache_new();
	ch->memory = calloc(REGIONS_MAX, sizeof(*ch->memory));
	ch->peer_rest_until_ns = calloc(2 * NODES_MAX, sizeof(*ch->peer_rest_until_ns));
	if (!ch->cache || !ch->memory || !ch->peer_rest_until_ns) {
		channel_free(ch);
		return error_set(-ENOMEM, "cannot open a channel: out of memory");
	}
	ch->peer_load = ch->peer_rest_until_ns + NODES_MAX;
	/* as in channel_ready(): half of the time is for the rest */
	pc_reattach(pc, now_ns + (wait_ns / 2 < ATTACH_WAIT_NS ? wait_ns / 2 : ATTACH_WAIT_NS));
	rc = channel_attach(ch, now_ns + wait_ns);
	if (rc && rc != -ENOTCONN && rc != -ECONNRESET && rc != -EPIPE) {
		channel_free(ch);
		return rc;
	}
	/* Without an engine, or if it ends now, the channel is open but waits for one: its pages
	 * end as PC_GONE until then. */
	channels_add(pc, ch);
	*ret_channel = ch;
	return 0;
}

/*
 * Waits for READs into the caller's memory, returns the credits and tells the engine. The engine
 * answers when nothing is in flight into the channel's own memory either.
 */
static void channel_close_attached(struct pc_channel *ch)
{
	struct client_session *session = ch->session;
	struct session_call call = {.kind = ATTACH_CHANNEL_CLOSE,
		.a = ch->id,
		.send_fd = -1,
		.timeout_ms = CLOSE_TIMEOUT_MS};

	for (struct pc_batch *b = ch->first; b; b = b->next)
		b->deadline_ns = 0;
	ch->due_ns = 0;
	channel_step(ch);
	wait_for(ch, NULL, UINT64_MAX);
	if (!ch->session)
		return;
	credit_return(ch, UINT64_MAX, 0);
	submit_flush(ch);
	if (!pc_wire_lock(ch->pc, clock_monotonic_ns() + CLOSE_TIMEOUT_MS * 1000000ull)) {
		if (!session_ask(session, &call))
			session_close_fds(&call);
		pthread_mutex_unlock(&ch->pc->wire);
	}
	if (shm_load(&session->dead))
		pc_session_end(ch->pc, session);
	channel_detach(ch);
}

void pc_channel_close(struct pc_channel *ch)
{
	if (!ch)
		return;
	descriptor_close(ch);
	if (ch->session || channel_adopt(ch))
		channel_close_attached(ch);
	channel_end_batches(ch);
	while (ch->first)
		batch_free(ch->first);
	channels_remove(ch->pc, ch);
	pc_opened_free(ch->pc, ch->opened);
	channel_free(ch);
}

/* ---- settings and counters ------------------------------------------------------------------- */

int pc_channel_name_space(struct pc_channel *ch, const char *name_space)
{
	struct page_key group;
	int rc = 0;

	error_clear();
	if (!ch)
		return error_set(-EINVAL, "pc_channel_name_space() needs a channel");
	group = ch->name_space.group;
	if (name_space)
		rc = key_name_space(ch->pc->secret, name_space, &ch->name_space);
	else
		ch->name_space = ch->pc->name_space;
	ch->epochs_version = CLIENT_NONE;
	if (!page_key_equal(&group, &ch->name_space.group))
		ch->limits_told = 0;
	return rc;
}

void pc_channel_counts(const struct pc_channel *channel, struct pc_counts *ret_counts)
{
	if (channel && ret_counts)
		*ret_counts = channel->counts;
}

void pc_channel_verify_counts(const struct pc_channel *channel, struct pc_verify_counts *ret_counts)
{
	if (channel && ret_counts)
		*ret_counts = channel->verify_counts;
}
