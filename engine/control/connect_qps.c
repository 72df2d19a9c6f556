/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of queue pairs, as both ends of a connection hold them, and how they are put into messages.
 * Control plane's thread only.
 */
#include <errno.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/connect_state.h"

/*
 * A queue pair has so many READs under way at a time and starts so many a second: enough of them
 * for the bytes of a round trip, and for the READs of a second. Reckoned for the worst case, a page
 * of 4 KiB and its head, at a round trip of 5 us: 8 at 400 Gbit/s, 5 at 200.
 */
#define AUTO_READ_BYTES ((PAGE_UNIT + sizeof(struct page_head)) / 2)
#define AUTO_RTT_NS 5000u
#define AUTO_READS 16u             /* under way; max_rd_atomic */
#define AUTO_READS_PER_S 2500000u
#define AUTO_MIN 4u /* one alone does not fill a port, and one is kept for small READs */

static uint64_t over(uint64_t n, uint64_t by)
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
	count = over(bytes_per_s / 1000000 * AUTO_RTT_NS / 1000, AUTO_READS * AUTO_READ_BYTES);
	if (count < over(bytes_per_s / AUTO_READ_BYTES, AUTO_READS_PER_S))
		count = over(bytes_per_s / AUTO_READ_BYTES, AUTO_READS_PER_S);
	if (count < AUTO_MIN)
		return AUTO_MIN;
	return count < QPS_PER_PEER_MAX ? (unsigned)count : QPS_PER_PEER_MAX;
}

int qps_create(struct control *control, unsigned rail, unsigned count, unsigned depth,
	struct qp_set *ret, struct dv_sq **ret_sq)
{
	struct control_rail *r = &control->rail[rail];
	struct qp_set qps = {0};

	for (; qps.count < count; qps.count++) {
		struct dv_sq *sq = NULL;
		int status =
			dv_qp_create(r->device, rail_cq(r->rail), depth, &qps.qp[qps.count], &sq);

		if (status) {
			log_warn("rail %u: no queue pair: %s", rail, dv_error());
			qps_destroy(&qps);
			return status;
		}
		if (ret_sq)
			ret_sq[qps.count] = sq;
	}
	*ret = qps;
	return 0;
}

void qps_error(struct qp_set *qps)
{
	for (unsigned i = 0; i < qps->count; i++)
		if (dv_qp_error(qps->qp[i]) < 0)
			log_warn("queue pair %u: %s", dv_qp_number(qps->qp[i]), dv_error());
}

void qps_destroy(struct qp_set *qps)
{
	for (unsigned i = 0; i < qps->count; i++)
		dv_qp_destroy(qps->qp[i]);
	qps->count = 0;
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

int qps_connect(struct qp_set *qps, size_t count, Pc__QpEnd *const *ends)
{
	if (count != qps->count)
		return -EPROTO;
	for (unsigned i = 0; i < qps->count; i++) {
		struct dv_address address;
		int status;

		memcpy(&address, ends[i]->address.data, sizeof(address));
		status = dv_qp_connect(qps->qp[i], &address);
		if (status) {
			log_warn("queue pair %u: %s", dv_qp_number(qps->qp[i]), dv_error());
			return status;
		}
	}
	return 0;
}

void qps_describe(const struct qp_set *qps, struct end_list *ret)
{
	for (unsigned i = 0; i < qps->count; i++) {
		dv_qp_address(qps->qp[i], &ret->address[i]);
		ret->end[i] = (Pc__QpEnd)PC__QP_END__INIT;
		ret->end[i].index = i;
		ret->end[i].address.len = sizeof(ret->address[i]);
		ret->end[i].address.data = (uint8_t *)&ret->address[i];
		ret->at[i] = &ret->end[i];
	}
}
