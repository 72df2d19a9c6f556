/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a message of the engine changes in its keeper. Only those of the process that the
 * keeper started are executed, as systemd does with NotifyAccess=main. Runs on the keeper's main
 * thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/keeper/keeper.h"

static void ready(struct keeper *k)
{
	if (k->ready)
		return;
	k->ready = true;
	k->pause_ms = KEEPER_PAUSE_MS;
	if (!k->ending)
		k->deadline_ns = 0; /* the time-out of the start */
	if (!k->was_ready && k->options.ready_fd >= 0) {
		if (write(k->options.ready_fd, "", 1) != 1)
			log_warn(
				"keeper: --ready-fd: writing the ready byte to file descriptor %d: %s",
				k->options.ready_fd, strerror(errno));
		close(k->options.ready_fd);
		k->options.ready_fd = -1;
	}
	k->was_ready = true;
	log_info("keeper: the engine (pid %d) serves after %" PRIu64 " ms", (int)k->engine,
		(clock_monotonic_ns() - k->began_ns) / 1000000);
}

/* Moves the datagram's descriptors into the store. */
static void store(struct keeper *k, struct notify_datagram *d, const struct notify_message *m)
{
	const char *name = m->name[0] ? m->name : NOTIFY_NAME_DEFAULT;
	unsigned refused = 0;

	for (unsigned i = 0; i < d->fds; i++)
		refused += store_add(&k->store, d->fd[i], name, m->poll) < 0;
	d->fds = 0; /* store_add() took all of them */
	if (refused)
		log_warn(
			"keeper: %u descriptors named %s are not stored: the store has its maximum of %u",
			refused, name, STORE_FDS_MAX);
}

static void execute(struct keeper *k, struct notify_datagram *d)
{
	struct notify_message m;
	const char *why = "";

	if (notify_parse(d->text, d->bytes, &m, &why) < 0) {
		log_warn("keeper: a message of the engine is ignored: %s", why);
		return;
	}
	/* notify_close() closes the descriptor of a barrier: all messages before it are executed */
	if (m.barrier)
		return;
	if (m.extend_us && k->deadline_ns) {
		uint64_t until_ns = keeper_later_ns(clock_monotonic_ns(), m.extend_us);

		if (until_ns > k->deadline_ns)
			k->deadline_ns = until_ns;
	}
	if (m.remove && store_remove(&k->store, m.name) == 0)
		log_debug("keeper: no stored descriptor has the name %s", m.name);
	if (m.store)
		store(k, d, &m);
	if (m.ready)
		ready(k);
}

bool keeper_messages(struct keeper *k, unsigned max)
{
	for (unsigned i = 0; i < max; i++) {
		struct notify_datagram *d = &k->datagram;
		int rc = notify_receive(k->notify, d);

		if (rc == 0)
			return true;
		if (d->pid != k->engine || k->engine == 0) {
			if (!k->foreign_told)
				log_warn(
					"keeper: messages of process %d to %s are ignored: it is not the engine (pid %d)",
					(int)d->pid, k->notify_path, (int)k->engine);
			k->foreign_told = true;
		} else if (rc == -EMSGSIZE) {
			log_warn(
				"keeper: a message of the engine is ignored: it is longer than %u bytes, or has more descriptors than this process may open",
				NOTIFY_BYTES_MAX);
		} else if (rc < 0) {
			log_warn("keeper: receiving from %s: %s", k->notify_path, strerror(-rc));
		} else {
			execute(k, d);
		}
		notify_close(d);
	}
	return false;
}
