/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of queue pairs, as both ends of a connection hold them, and how they are put into messages.
 * Control plane's thread only.
 */
#include <errno.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/connect_state.h"

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
