/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attaching again after the engine was lost. The attach thread, a thread of the library, opens the
 * session, then the channels that have none, then registers memory again. It starts when a call
 * finds no session and ends when its work is done, so an attached process does not have this
 * thread. No call waits for it past the call's own deadline: while an engine accepts a connection
 * and does not answer, calls return PC_GONE.
 */
#include "config/clock.h"
#include "config/limits.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/attach.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/memory.h"
#include "engine/client/reattach.h"
#include "engine/client/session.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BACKLOG_WAIT_MS 5000u /* longest wait for the engine to accept a connection */
#define OPEN_TIMEOUT_MS 10000u

/* ---- the session ----------------------------------------------------------------------------- */

static bool closing(struct pc *pc)
{
	bool is;

	pthread_mutex_lock(&pc->lock);
	is = pc->attacher.closing;
	pthread_mutex_unlock(&pc->lock);
	return is;
}

/*
 * Connects; while the backlog is full, tries again each millisecond, because the engine's event
 * loop empties it quickly.
 */
static int connect_patiently(struct pc *pc)
{
	int fd;

	for (unsigned ms = 0;; ms++) {
		fd = session_connect(pc->socket);
		if (fd != -EAGAIN || ms == BACKLOG_WAIT_MS || closing(pc))
			return fd;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
}

/*
 * Publishes a duplicate of the socket on which HELLO waits, so that attacher_stop() can shut it
 * down. A duplicate, because the session closes its own descriptor when HELLO fails.
 */
static void show_socket(struct pc *pc, int fd)
{
	pthread_mutex_lock(&pc->lock);
	pc->attacher.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (pc->attacher.closing)
		shutdown(fd, SHUT_RDWR);
	pthread_mutex_unlock(&pc->lock);
}

static void hide_socket(struct pc *pc)
{
	pthread_mutex_lock(&pc->lock);
	if (pc->attacher.fd >= 0)
		close(pc->attacher.fd);
	pc->attacher.fd = -1;
	pthread_mutex_unlock(&pc->lock);
}

int pc_attach(struct pc *pc)
{
	struct client_session *session;
	int fd = connect_patiently(pc), rc;

	if (fd < 0)
		return fd;
	show_socket(pc, fd);
	rc = session_open(pc->socket, fd, &session);
	if (rc) {
		hide_socket(pc);
		return rc;
	}
	/* Also hold `wire`: then a registration with the previous engine has ended before the
	 * regions are reset. */
	pthread_mutex_lock(&pc->wire);
	pthread_mutex_lock(&pc->lock);
	memory_forget_regions(pc);
	pc->session = session;
	/* If `closing` is not set yet, attacher_stop() will find the session; that may free the
	 * session as soon as `lock` is released. */
	if (pc->attacher.closing)
		shutdown(session->fd, SHUT_RDWR);
	pthread_mutex_unlock(&pc->lock);
	pthread_mutex_unlock(&pc->wire);
	hide_socket(pc);
	return 0;
}

/* ---- channels -------------------------------------------------------------------------------- */

void opened_free(struct pc *pc, struct opened *opened)
{
	session_close_fds(&opened->call);
	pc_session_put(pc, opened->session);
	free(opened);
}

void pc_channel_add(struct pc *pc, struct pc_channel *ch)
{
	pthread_mutex_lock(&pc->lock);
	pc->attacher.channels++;
	ch->next = pc->channels;
	pc->channels = ch;
	pthread_mutex_unlock(&pc->lock);
}

void pc_channel_remove(struct pc *pc, struct pc_channel *ch)
{
	struct pc_channel **at = &pc->channels;

	pthread_mutex_lock(&pc->lock);
	pc->attacher.channels--;
	while (*at != ch)
		at = &(*at)->next;
	*at = ch->next;
	pthread_mutex_unlock(&pc->lock);
}

void pc_channels_wanting(struct pc *pc, int change)
{
	pthread_mutex_lock(&pc->lock);
	pc->attacher.wanting += (unsigned)change;
	pthread_mutex_unlock(&pc->lock);
}

void pc_opened_refused(struct pc *pc)
{
	pthread_mutex_lock(&pc->lock);
	pc->attacher.tried_ns = clock_monotonic_ns();
	pthread_mutex_unlock(&pc->lock);
}

struct opened *pc_opened_take(struct pc *pc)
{
	struct opened *opened, *stale = NULL;

	pthread_mutex_lock(&pc->lock);
	while ((opened = pc->attacher.opened) != NULL) {
		pc->attacher.opened = opened->next;
		pc->attacher.available--;
		if (opened->session == pc->session)
			break;
		/* the engine of this channel was lost before a thread adopted the channel */
		opened->next = stale;
		stale = opened;
	}
	pthread_mutex_unlock(&pc->lock);
	while (stale) {
		struct opened *next = stale->next;

		opened_free(pc, stale);
		stale = next;
	}
	return opened;
}

/*
 * Opens one channel and adds it to `opened`. False: the engine opens no more channels, or no
 * memory.
 */
static bool open_one(struct pc *pc, struct client_session *session)
{
	struct opened *opened = calloc(1, sizeof(*opened));
	int rc;

	if (!opened)
		return false;
	opened->call = (struct session_call){
		.kind = ATTACH_CHANNEL_OPEN, .send_fd = -1, .timeout_ms = OPEN_TIMEOUT_MS};
	pthread_mutex_lock(&pc->wire);
	rc = session_ask(session, &opened->call);
	pthread_mutex_unlock(&pc->wire);
	if (rc) {
		free(opened);
		return false;
	}
	opened->session = session;
	pthread_mutex_lock(&pc->lock);
	session->users++;
	opened->next = pc->attacher.opened;
	pc->attacher.opened = opened;
	pc->attacher.available++;
	pthread_mutex_unlock(&pc->lock);
	return true;
}

/*
 * True if channels are missing. In a new session every channel counts, because some threads have
 * not noticed the loss of the old session yet.
 */
static bool channels_missing(struct pc *pc, bool is_new)
{
	const struct attacher *a = &pc->attacher;
	bool missing;

	pthread_mutex_lock(&pc->lock);
	missing = (is_new ? a->channels : a->wanting) > a->available;
	pthread_mutex_unlock(&pc->lock);
	return missing;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void open_missing(struct pc *pc, struct client_session *session, bool is_new)
{
	while (!closing(pc) && channels_missing(pc, is_new) && open_one(pc, session))
		continue;
}

static void *run(void *context)
{
	struct pc *pc = context;
	struct client_session *session = pc_session_get(pc);
	bool is_new = !session;

	if (is_new && !pc_attach(pc))
		session = pc_session_get(pc);
	if (session) {
		/* Open channels before registering memory, because registering a range may take
		 * minutes. */
		open_missing(pc, session, is_new);
		for (unsigned i = 0; i < REGIONS_MAX && !closing(pc); i++) {
			memory_register_again(pc, session, i);
			open_missing(pc, session, false);
		}
		if (shm_load(&session->dead))
			pc_session_end(pc, session);
		pc_session_put(pc, session);
	}
	pthread_mutex_lock(&pc->lock);
	if (session && pc->attacher.wanting <= pc->attacher.available)
		/* so that after the next loss of an engine the thread may start at once */
		pc->attacher.tried_ns = 0;
	pc->attacher.runs = false;
	pthread_cond_broadcast(&pc->attacher.ended);
	pthread_mutex_unlock(&pc->lock);
	return NULL;
}

/*
 * Starts the thread. The caller holds `lock`. The thread blocks all signals, because they are for
 * the program's own threads.
 */
static bool start(struct pc *pc)
{
	struct attacher *a = &pc->attacher;
	sigset_t all, before;
	int rc;

	a->tried_ns = clock_monotonic_ns();
	if (a->joinable)
		/* `runs` is false, so the old thread no longer takes the lock that is held here */
		pthread_join(a->thread, NULL);
	a->runs = true;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&a->thread, NULL, run, pc);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	a->joinable = a->runs = rc == 0;
	return a->runs;
}

/* Has the attach thread work to do? The caller holds `lock`. */
static bool has_work(const struct pc *pc)
{
	const struct attacher *a = &pc->attacher;

	if (pc->no_reattach || a->closing || a->runs)
		return false;
	return !pc->session || a->wanting > a->available;
}

void pc_reattach(struct pc *pc, uint64_t until_ns)
{
	struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
		.tv_nsec = (long)(until_ns % 1000000000)};
	struct client_session *session = pc_session_get(pc);

	if (session) {
		if (session_ended(session))
			pc_session_end(pc, session);
		pc_session_put(pc, session);
	}
	pthread_mutex_lock(&pc->lock);
	if (has_work(pc) && clock_monotonic_ns() - pc->attacher.tried_ns >= REATTACH_NS &&
		start(pc))
		while (pc->attacher.runs &&
			!pthread_cond_timedwait(&pc->attacher.ended, &pc->lock, &until))
			continue;
	pthread_mutex_unlock(&pc->lock);
}

void attacher_init(struct pc *pc)
{
	pthread_condattr_t attributes;

	pc->attacher.fd = -1;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&pc->attacher.ended, &attributes);
	pthread_condattr_destroy(&attributes);
}

void attacher_inherited(struct pc *pc)
{
	struct attacher *a = &pc->attacher;

	if (a->fd >= 0)
		close(a->fd);
	while (a->opened) {
		struct opened *opened = a->opened;

		a->opened = opened->next;
		session_close_fds(&opened->call);
		free(opened);
	}
	a->available = 0;
	a->wanting = a->channels;
	a->runs = a->joinable = false;
	attacher_init(pc);
}

/*
 * Ends the attach thread. Shutting its sockets down ends every wait for the engine, so the join
 * takes only as long as the current system call.
 */
void attacher_stop(struct pc *pc)
{
	struct attacher *a = &pc->attacher;
	struct client_session *session = NULL;
	bool join;

	pthread_mutex_lock(&pc->lock);
	a->closing = true;
	if (a->fd >= 0)
		shutdown(a->fd, SHUT_RDWR);
	if (a->runs && pc->session) {
		session = pc->session;
		session->users++;
	}
	join = a->joinable;
	a->joinable = false;
	pthread_mutex_unlock(&pc->lock);
	if (session) {
		pc_session_end(pc, session);
		pc_session_put(pc, session);
	}
	if (join)
		pthread_join(a->thread, NULL);
}

void attacher_close(struct pc *pc)
{
	struct opened *opened;

	while ((opened = pc_opened_take(pc)) != NULL)
		opened_free(pc, opened);
	pthread_cond_destroy(&pc->attacher.ended);
}
