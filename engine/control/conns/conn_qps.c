/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of queue pairs, used by both sides of a connection: the driver calls that make, conns,
 * break and destroy them, and their form in messages. Helper threads execute the driver calls,
 * because the kernel may resolve a neighbour for a second, or wait for a dying NIC for a minute.
 * Everything else runs on the control plane's thread.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "config/text_fit.h"
#include "engine/control/conns/conns_inner.h"

/*
 * Automatic number of queue pairs. A queue pair is limited in its READs in flight and in the READs
 * it starts per second, so there must be enough queue pairs for the bytes of one round trip and for
 * the READs of one second. Computed for the worst case, pages of 4 KiB with their heads, at a round
 * trip of 5 us: 8 at 400 Gbit/s, 5 at 200 Gbit/s.
 */
#define AUTO_READ_BYTES ((PAGE_UNIT + sizeof(struct page_head)) / 2)
#define AUTO_RTT_NS 5000u
#define AUTO_READS 16u /* READs in flight per queue pair (max_rd_atomic) */
#define AUTO_READS_PER_S 2500000u
/* minimum of queue pairs: one cannot fill a port, and one is kept free for short READs */
#define AUTO_MIN 4u

static uint64_t divide_up(uint64_t n, uint64_t by)
{
	return (n + by - 1) / by;
}

unsigned qps_wanted(const struct control *control, unsigned rail)
{
	unsigned asked = (unsigned)control->settings->rail_qps_per_peer;
	uint64_t bytes_per_s, count;
	struct dv_attributes nic;

	if (asked)
		return asked;
	dv_attributes(control->rail[rail].device, &nic);
	bytes_per_s = nic.bits_per_second / 8;
	count = divide_up(bytes_per_s / 1000000 * AUTO_RTT_NS / 1000, AUTO_READS * AUTO_READ_BYTES);
	if (count < divide_up(bytes_per_s / AUTO_READ_BYTES, AUTO_READS_PER_S))
		count = divide_up(bytes_per_s / AUTO_READ_BYTES, AUTO_READS_PER_S);
	if (count < AUTO_MIN)
		return AUTO_MIN;
	return count < QPS_PER_PEER_MAX ? (unsigned)count : QPS_PER_PEER_MAX;
}

/* ---- helper threads -------------------------------------------------------------------------- */

static int qps_failed(struct qps *qps, int status)
{
	text_fit(qps->text, sizeof(qps->text), "%s", dv_error());
	return status;
}

/*
 * Each driver call may take a second, so a helper thread skips the remaining calls of an abandoned
 * set.
 */
static bool qps_given_up(struct qps *qps)
{
	return shm_load(&qps->abandoned) != 0;
}

static int qps_make(struct qps *qps)
{
	struct control_rail *r = &qps->control->rail[qps->rail];
	struct qp_set *set = &qps->set;

	/* not every NIC reports each change of its GIDs */
	qps->port = dv_port_look(r->device);
	if (qps->port)
		return qps_failed(qps, qps->port);
	for (; set->count < qps->count; set->count++) {
		int status;

		if (qps_given_up(qps))
			return -ECANCELED;
		status = dv_qp_create(r->device, rail_cq(r->rail), qps->depth, &set->qp[set->count],
			&qps->sq[set->count]);
		if (status)
			return qps_failed(qps, status);
	}
	return 0;
}

static int qps_connect(struct qps *qps)
{
	if (qps->remotes != qps->set.count) {
		text_fit(qps->text, sizeof(qps->text), "%u queue pairs answered for %u",
			qps->remotes, qps->set.count);
		return -EPROTO;
	}
	for (unsigned i = 0; i < qps->set.count; i++) {
		uint64_t ack_ns;
		int status;

		if (qps_given_up(qps))
			return -ECANCELED;
		status = dv_qp_connect(qps->set.qp[i], &qps->remote[i]);
		if (status)
			return qps_failed(qps, status);
		ack_ns = dv_qp_ack_ns(qps->set.qp[i]);
		if (ack_ns > qps->ack_ns)
			qps->ack_ns = ack_ns;
	}
	return 0;
}

/*
 * Calls `call` for every queue pair of the set, also after it failed for one. Returns the first
 * error.
 */
static int qps_each(struct qps *qps, int (*call)(struct dv_qp *qp))
{
	int first = 0;

	for (unsigned i = 0; i < qps->set.count; i++) {
		int status = call(qps->set.qp[i]);

		if (status && !first)
			first = qps_failed(qps, status);
	}
	return first;
}

void qps_destroy(struct qp_set *set)
{
	for (unsigned i = 0; i < set->count; i++)
		dv_qp_destroy(set->qp[i]);
	set->count = 0;
}

static void qps_run(struct work *work, unsigned part)
{
	/* the cast is valid because `work` is the first member of struct qps */
	struct qps *qps = (struct qps *)work;

	(void)part;
	qps->status = 0;
	switch (qps->call) {
	case QPS_MAKE:
		qps->status = qps_make(qps);
		if (qps->status == 0 && qps->remotes)
			qps->status = qps_connect(qps);
		break;
	case QPS_CONNECT: qps->status = qps_connect(qps); break;
	case QPS_ERROR: qps->status = qps_each(qps, dv_qp_error); break;
	case QPS_KILL: qps->status = qps_each(qps, dv_qp_kill); break;
	case QPS_DESTROY: qps_destroy(&qps->set); break;
	}
}

/* ---- control plane's thread ------------------------------------------------------------------ */

static_assert(offsetof(struct qps, work) == 0, "either pointer leads to the other");

static void qps_on_done(struct work *work)
{
	struct qps *qps = (struct qps *)work;

	qps->busy = false;
	if (qps->call == QPS_MAKE && qps->port)
		conns_port_look(qps->control, qps->rail);
	else if (qps->call == QPS_MAKE)
		conns_replace_stale(qps->control, qps->rail);
	qps->done(qps);
}

void qps_start(struct qps *qps, enum qps_call call)
{
	qps->call = call;
	qps->busy = true;
	qps->work.run = qps_run;
	qps->work.done = qps_on_done;
	work_submit(qps->control->conns->works, work_queue_of(qps->rail, call >= QPS_ERROR),
		&qps->work);
}

void qps_abandon(struct qps *qps)
{
	shm_store(&qps->abandoned, 1);
}

bool qps_making(const struct qps *qps)
{
	return qps->busy && (qps->call == QPS_MAKE || qps->call == QPS_CONNECT);
}

bool qps_have(const struct qps *qps, uint32_t qpn)
{
	for (unsigned i = 0; !qps->busy && i < qps->set.count; i++)
		if (dv_qp_number(qps->set.qp[i]) == qpn)
			return true;
	return false;
}

bool qps_stale(const struct qps *qps)
{
	return !qps->busy && qps->set.count && dv_qp_stale(qps->set.qp[0]);
}

bool ends_fit(size_t count, Pc__QpEnd *const *ends)
{
	if (count > QPS_PER_PEER_MAX)
		return false;
	for (size_t i = 0; i < count; i++)
		if (ends[i]->index != i || ends[i]->address.len != sizeof(struct dv_address))
			return false;
	return true;
}

void qps_remote(struct qps *qps, size_t count, Pc__QpEnd *const *ends)
{
	qps->remotes = (unsigned)count;
	for (size_t i = 0; i < count; i++)
		memcpy(&qps->remote[i], ends[i]->address.data, sizeof(qps->remote[i]));
}

void qps_describe(const struct qp_set *set, struct end_list *ret)
{
	for (unsigned i = 0; i < set->count; i++) {
		dv_qp_address(set->qp[i], &ret->address[i]);
		ret->end[i] = (Pc__QpEnd)PC__QP_END__INIT;
		ret->end[i].index = i;
		ret->end[i].address.len = sizeof(ret->address[i]);
		ret->end[i].address.data = (uint8_t *)&ret->address[i];
		ret->at[i] = &ret->end[i];
	}
}
