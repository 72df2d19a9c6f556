/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs that do not drain, and lost NICs. As long as the NIC may still write to memory, none
 * of that memory is reused. The proof that it cannot is that every queue pair was destroyed, or
 * that the device was closed; an error code alone is no proof. If neither succeeds in time, the
 * engine aborts. Control plane's thread; a helper thread closes the device.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/clients/client.h"
#include "engine/control/conns/conn_state.h"
#include "engine/control/conns/device_event.h"
#include "engine/control/base/fatal.h"
#include "numa/clock.h"

/* ---- closing a device ------------------------------------------------------------------------ */

struct cut {
	struct work work; /* must be first: a pointer to it is cast to struct cut */
	struct control *control;
	unsigned rail;
	int status;
	char text[240];
};

static void cut_run(struct work *work)
{
	struct cut *cut = (struct cut *)work;

	cut->status = dv_cut(cut->control->rail[cut->rail].device);
	if (cut->status)
		snprintf(cut->text, sizeof(cut->text), "%s", dv_error());
}

/*
 * Called when the device is closed: the NIC writes nothing any more, so the rail may end the
 * requests it had posted.
 */
static void cut_done(struct work *work)
{
	struct cut *cut = (struct cut *)work;
	struct control *control = cut->control;
	unsigned rail = cut->rail;
	struct out_conn *conn;

	if (cut->status)
		engine_abort(
			"rail %u: the NIC can neither be used nor closed: %s", rail, cut->text);
	free(cut);
	control->conns->health[rail].cut = true;
	log_info("rail %u: its device is closed", rail);
	LIST_FOREACH (conn, &control->conns->out_conns, next)
		if (conn->rail == rail)
			out_conn_go_on(conn);
	in_conns_drop_rail(control, rail);
	client_regions_retry(control);
}

static bool rails_left(const struct control *control)
{
	for (unsigned i = 0; i < control->rails; i++)
		if (!control->conns->health[i].lost)
			return true;
	return false;
}

void rail_lost(struct control *control, unsigned rail, const char *format, ...)
{
	struct rail_health *h = &control->conns->health[rail];
	char why[256];
	va_list arguments;
	bool was_out;

	if (h->lost)
		return;
	va_start(arguments, format);
	vsnprintf(why, sizeof(why), format, arguments);
	va_end(arguments);
	log_error("rail %u: %s is lost until the engine is started again: %s; see dmesg", rail,
		control->plan.rail[rail].device, why);
	was_out = rail_out(control, rail);
	h->lost = true;
	device_event_forget(control, rail);
	if (!was_out)
		rail_leaves(control, rail);
	(void)outbox_send(control, rail, &(struct rail_command){.kind = RAIL_LOST});
	if (rails_left(control) || control->stopping)
		return;
	log_error(
		"no rail is left: this engine can neither read nor be read; it leaves the cluster and exits: repair the NICs and start it again");
	control->failed = -ENODEV;
}

void conns_device_lost(struct control *control, unsigned rail, const char *why)
{
	rail_lost(control, rail, "%s", why);
}

/* Handles RAIL_QUIET: the rail does not touch its queues any more, so the device may be closed. */
void conns_quiet(struct control *control, unsigned rail)
{
	struct cut *cut = calloc(1, sizeof(*cut));

	if (!cut)
		engine_abort("rail %u: no memory to close its device", rail);
	cut->work.run = cut_run;
	cut->work.done = cut_done;
	cut->control = control;
	cut->rail = rail;
	work_submit(control->conns->works, work_queue_of(rail, true), &cut->work);
}

/* ---- queue pairs that do not drain ----------------------------------------------------------- */

void out_conn_ticks_set(struct out_conn *conn, uint64_t ns)
{
	conn->ticks = (unsigned)((ns + CONN_TICK_NS - 1) / CONN_TICK_NS);
	conn->tick_ns = clock_now_ns();
}

/*
 * A late tick does not count: the process was stopped or the host was suspended, and the loop must
 * first process what helper threads and the rail have done meanwhile.
 */
static void tick(evutil_socket_t fd, short what, void *context)
{
	struct out_conn *conn = context;
	uint64_t passed_ns = clock_now_ns() - conn->tick_ns;

	(void)fd;
	(void)what;
	conn->tick_ns += passed_ns;
	if (passed_ns >= 2 * CONN_TICK_NS)
		return;
	if (conn->ticks > 1) {
		conn->ticks--;
		return;
	}
	engine_abort(
		"rail %u: %s does not give up the memory that READs from peer %u were posted to, %llu s after their deadline: neither could its queue pairs be destroyed nor the device be closed",
		conn->rail, conn->control->plan.rail[conn->rail].device, conn->handle.peer,
		(CONN_OVERDUE_NS + CONN_ABORT_NS) / 1000000000);
}

void conns_stuck(struct control *control, unsigned rail, struct rail_conn *handle, uint64_t ns)
{
	const struct timeval every = {.tv_usec = CONN_TICK_NS / 1000};
	struct out_conn *conn = handle->control;
	uint64_t now_ns = clock_now_ns(), until_ns = ns + CONN_OVERDUE_NS;

	if (conn->gone)
		return;
	log_warn(
		"rail %u: what was posted to peer %u is not flushed; its queue pairs are destroyed",
		rail, conn->handle.peer);
	out_conn_deadline_end(conn);
	conn->deadline = event_new(control->base, -1, EV_PERSIST, tick, conn);
	if (!conn->deadline || event_add(conn->deadline, &every))
		engine_abort("no memory for a deadline");
	out_conn_ticks_set(conn, (until_ns > now_ns ? until_ns - now_ns : 0) + CONN_ABORT_NS);
	conn->kill = true;
	out_conn_go_on(conn);
}
