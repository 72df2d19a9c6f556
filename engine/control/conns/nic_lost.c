/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs that are lost, and come back. A NIC is lost when its device died or was removed, or does not
 * do what its driver is asked; its rail is then out of use. Control plane's thread; helper threads
 * close the device, open it anew and register memory.
 *
 * As long as a lost NIC may still write to memory, none of that memory is reused. The proof that it
 * cannot is that its device was closed; an error code alone is no proof. If the device cannot be
 * closed, the engine aborts.
 *
 * From then on the device is opened anew, once a second while the NIC is away. One that was there
 * all the time, and dies again, gets pauses that double. The order: the queue pairs of the old
 * device are freed, the device is opened, the rail's completion queue is made, all memory of the
 * engine and of its clients is registered, the rail gets its NIC, connections are made. A software
 * NIC does not come back; when no rail is left, and none may come back, the engine ends.
 *
 * A client that registers memory has descriptors of all devices, and while it has, closing one here
 * would not destroy its queues. So none is lent from the loss of a NIC until its device is closed,
 * nor while one is opened anew, and clients give back those that they have (abi/segment.h).
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/text_fit.h"
#include "engine/control/base/fatal.h"
#include "engine/control/base/outbox.h"
#include "engine/control/clients/clients.h"
#include "engine/control/conns/conns_inner.h"
#include "engine/control/net/net.h"

/* how long a client may keep the device of a lost NIC open: until a line in the log, and at all.
 * The driver of a NIC that does not answer may need 60 s for a registration */
#define NIC_LENT_TELL_NS 10000000000ull
#define NIC_LENT_NS 180000000000ull
#define NIC_PAUSE_NS 1000000000ull /* before a NIC is opened anew */
#define NIC_PAUSES_MAX 6u          /* number of times that the pause doubles at most */
/* a NIC that was in use for longer than this gets the first pause again */
#define NIC_STEADY_NS 10000000000ull

/* ---- lending --------------------------------------------------------------------------------- */

static void lending_look(struct control *control)
{
	bool back = false;

	for (unsigned i = 0; i < control->rails; i++) {
		const struct rail_health *h = &control->conns->health[i];

		back = back || (h->lost && !h->cut) || h->attempt;
	}
	shm_store(&control->status->lent_back, back);
}

/* ---- lost ------------------------------------------------------------------------------------ */

struct cut {
	struct work work; /* must be first: a pointer to it is cast to struct cut */
	struct control *control;
	unsigned rail;
	bool attempted; /* the device was opened anew, but the rail did not get it */
	int status;
	char text[240];
};

static void device_cut_run(struct work *work, unsigned part)
{
	struct cut *cut = (struct cut *)work;

	(void)part;
	if (cut->attempted)
		rail_nic_close(cut->control->rail[cut->rail].rail);
	cut->status = dv_cut(cut->control->rail[cut->rail].device);
	if (cut->status)
		text_fit(cut->text, sizeof(cut->text), "%s", dv_error());
}

/*
 * Called when the device is closed: the NIC writes nothing any more, so the rail may end the
 * requests it had posted.
 */
static void device_cut_done(struct work *work)
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
	lending_look(control);
	log_info("rail %u: its device is closed", rail);
	LIST_FOREACH (conn, &control->conns->out_conns, next)
		if (conn->rail == rail)
			out_conn_go_on(conn);
	in_conns_drop_rail(control, rail);
	client_memory_release_held(control);
}

static bool nic_comes_back(const struct control *control, unsigned rail)
{
	struct dv_attributes nic;

	dv_attributes(control->rail[rail].device, &nic);
	return nic.hardware;
}

/* Whether the engine has a rail, or may have one again. */
static bool rails_any_left(const struct control *control)
{
	for (unsigned i = 0; i < control->rails; i++)
		if (!control->conns->health[i].lost || nic_comes_back(control, i))
			return true;
	return false;
}

/* The next attempt to open the NIC is made after a pause, which doubles. */
static void nic_pause(struct rail_health *h)
{
	h->back_ns = net_now() + (NIC_PAUSE_NS << h->pauses);
	if (h->pauses < NIC_PAUSES_MAX)
		h->pauses++;
}

void rail_lost(struct control *control, unsigned rail, const char *format, ...)
{
	struct rail_health *h = &control->conns->health[rail];
	bool back = nic_comes_back(control, rail);
	char why[PORT_WHY_BYTES - 48]; /* the remedy has room behind it */
	va_list arguments;
	bool was_out;

	if (h->lost) {
		h->lost_again = true;
		return;
	}
	va_start(arguments, format);
	text_vfit(why, sizeof(why), format, arguments);
	va_end(arguments);
	log_error("rail %u: %s is lost%s: %s; see dmesg", rail, control->plan.rail[rail].device,
		back ? "" : " until the engine is started again", why);
	was_out = rail_out(control, rail);
	h->lost = true;
	lending_look(control);
	text_fit(h->why, sizeof(h->why), "%s; %s", why,
		back ? "see dmesg" : "start the engine again to use it");
	if (net_now() - h->found_ns > NIC_STEADY_NS)
		h->pauses = 0;
	nic_pause(h);
	device_event_forget(control, rail);
	if (!was_out)
		rail_leaves(control, rail);
	(void)outbox_send(control, rail, &(struct rail_command){.kind = RAIL_LOST});
	if (rails_any_left(control) || control->stopping)
		return;
	log_error(
		"no rail is left: this engine can neither read nor be read; it leaves the cluster and exits: repair the NICs and start it again");
	control->failed = -ENODEV;
}

static void device_cut_start(struct control *control, unsigned rail, bool attempted)
{
	struct cut *cut = calloc(1, sizeof(*cut));

	if (!cut)
		engine_abort("rail %u: no memory to close its device", rail);
	cut->work.run = device_cut_run;
	cut->work.done = device_cut_done;
	cut->control = control;
	cut->rail = rail;
	cut->attempted = attempted;
	work_submit(control->conns->works, work_queue_of(rail, true), &cut->work);
}

/* Closes the device if clients have none, else as soon as they have given theirs back. */
static void device_cut_watch(struct control *control, unsigned rail, uint64_t now_ns)
{
	struct rail_health *h = &control->conns->health[rail];
	unsigned seconds = (unsigned)((now_ns - h->cut_since_ns) / 1000000000);

	if (!h->cut_since_ns)
		return;
	if (!clients_lent(control)) {
		h->cut_since_ns = 0;
		device_cut_start(control, rail, h->cut_attempt);
		return;
	}
	if (now_ns - h->cut_since_ns >= NIC_LENT_NS)
		engine_abort(
			"rail %u: a process that registers memory has kept the device of its lost NIC open for %u s",
			rail, seconds);
	if (h->cut_told || now_ns - h->cut_since_ns < NIC_LENT_TELL_NS)
		return;
	h->cut_told = true;
	log_warn(
		"rail %u: its READs in flight wait since %u s for a process that registers memory and keeps the device of this lost NIC open: continue it if it is stopped, or end it",
		rail, seconds);
}

static void device_cut(struct control *control, unsigned rail, bool attempted)
{
	struct rail_health *h = &control->conns->health[rail];

	h->cut_since_ns = net_now();
	h->cut_attempt = attempted;
	h->cut_told = false;
	device_cut_watch(control, rail, h->cut_since_ns);
}

/* Handles RAIL_QUIET: the rail does not touch its queues any more, so the device may be closed. */
void conns_quiet(struct control *control, unsigned rail)
{
	device_cut(control, rail, false);
}

/* ---- back ------------------------------------------------------------------------------------ */

/*
 * Registers what was registered on the NIC before: pools, page heads and the shard. Only software
 * NICs need the files of which they are mappings, and these do not come back.
 */
static int nic_memory_register(const struct control_rail *rail, struct dv_mr *ret_mrs)
{
	int rc = 0;

	for (unsigned i = 0; i < REGIONS_EXPORTED && rc == 0; i++) {
		const struct dv_mr *mr = &rail->exported[i];

		if (mr->length)
			rc = dv_mr_register(rail->device,
				&(struct dv_memory){.base = mr->base,
					.length = mr->length,
					.access = memory_access(i),
					.memfd = -1},
				&ret_mrs[i]);
	}
	return rc;
}

static void nic_attempt_run(struct work *work, unsigned part)
{
	struct nic_attempt *a = (struct nic_attempt *)work;
	struct control_rail *r = &a->control->rail[a->rail];

	(void)part;
	a->status = dv_reopen(r->device);
	a->opened = a->status == 0;
	if (a->status == 0)
		a->status = rail_nic_open(r->rail);
	if (a->status == 0)
		a->status = nic_memory_register(r, a->exported);
	if (a->status) {
		text_fit(a->text, sizeof(a->text), "%s", dv_error());
		return;
	}
	a->port = dv_port_look(r->device);
	text_fit(a->port_text, sizeof(a->port_text), "%s", a->port ? dv_error() : "");
}

/* The attempt has failed. A device that it opened is closed as a lost one. */
static void nic_attempt_fail(struct control *control, unsigned rail, const char *why)
{
	struct rail_health *h = &control->conns->health[rail];
	struct nic_attempt *a = h->attempt;

	if (a->status == -ENODEV && !a->opened)
		h->pauses = 0; /* it is away: it is opened as soon as it is back */
	if (strcmp(why, h->why) != 0)
		log_error("rail %u: %s stays lost: %s; tried again until it can be used", rail,
			control->plan.rail[rail].device, why);
	text_fit(h->why, sizeof(h->why), "%s", why);
	nic_pause(h);
	h->attempt = NULL;
	if (a->opened) {
		h->cut = false;
		device_cut(control, rail, true);
	}
	lending_look(control);
	free(a);
}

static void nic_attempt_returned(struct work *work)
{
	struct nic_attempt *a = (struct nic_attempt *)work;

	a->returned = true;
	if (a->status && !a->control->stopping)
		nic_attempt_fail(a->control, a->rail, a->text);
}

static bool rail_has_conns(const struct control *control, unsigned rail)
{
	const struct out_conn *out;
	const struct in_conn *in;

	LIST_FOREACH (out, &control->conns->out_conns, next)
		if (out->rail == rail)
			return true;
	LIST_FOREACH (in, &control->conns->in_conns, next)
		if (in->to_rail == rail)
			return true;
	return false;
}

static void nic_attempt_start(struct control *control, unsigned rail)
{
	struct rail_health *h = &control->conns->health[rail];
	struct nic_attempt *a = calloc(1, sizeof(*a));

	if (!a)
		return; /* the next look tries again */
	a->control = control;
	a->rail = rail;
	a->work.run = nic_attempt_run;
	a->work.done = nic_attempt_returned;
	h->attempt = a;
	h->lost_again = false;
	lending_look(control);
	work_submit(control->conns->openers, rail, &a->work);
}

/* The rail has all that it had before: it gets its NIC, and is in use if the port can be used. */
static void nic_found(struct control *control, unsigned rail)
{
	struct rail_health *h = &control->conns->health[rail];
	struct nic_attempt *a = h->attempt;

	memcpy(control->rail[rail].exported, a->exported, sizeof(a->exported));
	(void)outbox_send(control, rail, &(struct rail_command){.kind = RAIL_FOUND});
	h->attempt = NULL;
	h->found_ns = net_now();
	h->lost = h->cut = false;
	lending_look(control);
	h->port = -ENODEV; /* out of use until the next line but one */
	control->counter[COUNTER_rails_found]++;
	log_info("rail %u: %s is back: its device was opened anew and the memory is registered%s%s",
		rail, control->plan.rail[rail].device, a->port ? "; out of use: " : "",
		a->port_text);
	conns_port(control, rail, a->port, a->port_text);
	device_event_watch(control, rail);
	free(a);
}

void nic_lost_watch(struct control *control, unsigned rail, uint64_t now_ns)
{
	struct rail_health *h = &control->conns->health[rail];
	char why[PORT_WHY_BYTES] = "it died again while its memory was registered";
	int left;

	device_cut_watch(control, rail, now_ns);
	if (!h->attempt) {
		if (h->cut && now_ns >= h->back_ns && !control->exporting &&
			!clients_lent(control) && nic_comes_back(control, rail) &&
			!rail_has_conns(control, rail))
			nic_attempt_start(control, rail);
		return;
	}
	if (!h->attempt->returned)
		return;
	left = client_memory_renew(control, rail, why, sizeof(why));
	if (left < 0 || (left == 0 && h->lost_again))
		nic_attempt_fail(control, rail, why);
	else if (left == 0)
		nic_found(control, rail);
}

int nic_lost_open(struct control *control)
{
	return works_open(control->base,
		&(struct works_options){.name = "pc-nics",
			.queues = control->rails ? control->rails : 1,
			.threads = 1},
		&control->conns->openers);
}

void nic_lost_close(struct control *control)
{
	works_close(control->conns->openers);
	for (unsigned i = 0; i < control->rails; i++) {
		struct nic_attempt *a = control->conns->health[i].attempt;

		/* what was registered is deregistered with the rest */
		if (a && a->opened)
			memcpy(control->rail[i].exported, a->exported, sizeof(a->exported));
		free(a);
	}
}
