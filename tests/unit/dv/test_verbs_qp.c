/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests dv/qp.c against stubs: all requested attributes, the content of the handle for the hot
 * path, the refusals, and that a failure frees what was created before it. One thread.
 */
#include "tests/unit/dv/test_verbs_pair.h"

static void a_qp_is_requested_with_these_attributes(void **state)
{
	const struct ibv_qp_init_attr_ex *attr = &stub.qp_attr;
	struct pair p = pair_make();

	assert_int_equal(attr->qp_type, IBV_QPT_RC);
	assert_int_equal(attr->sq_sig_all, 0);
	assert_ptr_equal(attr->send_cq, ibv_cq_ex_to_cq(&stub_cq));
	assert_ptr_equal(attr->recv_cq, ibv_cq_ex_to_cq(&stub_cq));
	assert_null(attr->srq);
	assert_int_equal(attr->cap.max_send_wr, 64);
	assert_int_equal(attr->cap.max_send_sge, 2);
	assert_int_equal(attr->cap.max_recv_wr, 0);
	assert_int_equal(attr->cap.max_inline_data, 0);
	assert_int_equal(attr->comp_mask, IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
	/* QPs are created in the parent domain, which has a doorbell page of its own. */
	assert_ptr_equal(attr->pd, &stub_domain);
	assert_int_equal(
		attr->send_ops_flags, IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE);
	assert_int_equal(stub.qp_mlx5_attr.comp_mask, MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS);
	assert_int_equal(stub.qp_mlx5_attr.create_flags, MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE);
	assert_int_equal(stub.modifies, 1);
	assert_int_equal(stub.modify[0].attr.qp_state, IBV_QPS_INIT);
	assert_int_equal(stub.modify[0].attr.port_num, 1);
	assert_int_equal(stub.modify[0].attr.pkey_index, 0);
	assert_int_equal(stub.modify[0].mask,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	assert_int_equal(stub.modify[0].attr.qp_access_flags, IBV_ACCESS_REMOTE_READ);
	pair_drop(&p);
}

static void the_hot_handle_has_the_values_of_mlx5dv(void **state)
{
	struct pair p = pair_make();
	struct dv_sge sge = {0x1000, 4096, 7};
	struct dv_address address;

	assert_int_equal((uintptr_t)p.sq % 64, 0);
	assert_ptr_equal(p.sq->buf, stub_queue);
	assert_ptr_equal(p.sq->record, stub_record);
	assert_ptr_equal(p.sq->bf_reg, stub_register + 0x800);
	assert_int_equal(p.sq->wqe_cnt, 64);
	assert_int_equal(p.sq->bf_size, 256);
	assert_int_equal(p.sq->bf_offset, 0);
	assert_int_equal(p.sq->qpn, 0x4711);
	ops->qp_address(p.qp, &address);
	assert_int_equal(address.qpn, 0x4711);
	assert_int_equal(dv_sq_room(p.sq), 64);
	/*
	 * The hot path can use the QP's handle: it writes the WQE, the doorbell record and the
	 * doorbell register.
	 */
	dv_post(p.sq, DV_READ, 0x2000, 9, &sge, 1, DV_CE_ALWAYS);
	dv_ring(p.sq);
	assert_int_equal(be32toh(stub_record[DV_DBREC_SEND]), 1);
	assert_memory_equal(stub_register + 0x800, stub_queue, 8);
	p.sq->ci = p.sq->pi;
	pair_drop(&p);
}

static void an_impossible_qp_is_refused_and_freed(void **state)
{
	struct pair p = {.device = stub_open()};
	struct ibv_context elsewhere;
	struct ibv_cq theirs = {.context = &elsewhere};
	struct dv_cq stranger = {.cqn = 9, .handle = &theirs};
	struct dv_qp *qp = (void *)&p;
	struct dv_sq *sq = (void *)&p;

	assert_int_equal(ops->cq_create(p.device, 64, &p.cq), 0);
	assert_int_equal(ops->qp_create(p.device, &stranger, 64, &qp, &sq), -EINVAL);
	error_has("CQ 0x9 belongs to another NIC");
	stranger.handle = NULL;
	assert_int_equal(ops->qp_create(p.device, &stranger, 64, &qp, &sq), -EINVAL);
	assert_int_equal(ops->qp_create(p.device, &p.cq, 0, &qp, &sq), -EINVAL);
	assert_int_equal(ops->qp_create(p.device, &p.cq, 32769, &qp, &sq), -EINVAL);
	error_has("supports 1 to 32768");
	stub.qp_raw.sq.wqe_cnt = 32;
	assert_int_equal(ops->qp_create(p.device, &p.cq, 64, &qp, &sq), -EPROTO);
	stub.qp_raw.sq.wqe_cnt = 96;
	assert_int_equal(ops->qp_create(p.device, &p.cq, 64, &qp, &sq), -EPROTO);
	stub.qp_raw.sq.wqe_cnt = 64;
	stub.qp_raw.sq.stride = 256;
	assert_int_equal(ops->qp_create(p.device, &p.cq, 64, &qp, &sq), -EPROTO);
	stub.qp_raw.sq.stride = 64;
	assert_int_equal(stub.alive.qp, 0);
	stub.fail_errno = ENOSPC;
	/* the steps that can fail: create, init_obj, transition to INIT */
	for (unsigned step = 1; step <= 3; step++) {
		stub.fail_at = stub.calls + step;
		assert_int_equal(ops->qp_create(p.device, &p.cq, 64, &qp, &sq), -ENOSPC);
		error_has("No space left on device");
		assert_int_equal(stub.alive.qp, 0);
	}
	assert_ptr_equal(qp, &p); /* the call failed and left its outputs unchanged */
	assert_ptr_equal(sq, &p);
	ops->cq_destroy(p.device, &p.cq);
	ops->close(p.device);
}

/* ---- connecting ---------------------------------------------------------------------------- */

static void the_address_has_what_a_peer_needs(void **state)
{
	struct pair p = pair_make();
	struct dv_address address;

	memset(&address, 0xff, sizeof(address));
	ops->qp_address(p.qp, &address);
	assert_int_equal(address.version, 1);
	assert_int_equal(address.kind, 2);
	assert_int_equal(address.mtu, IBV_MTU_4096);
	assert_int_equal(address.reads, 16);
	assert_int_equal(address.qpn, 0x4711);
	assert_int_equal(address.psn, p.qp->psn);
	assert_true(address.psn <= 0xffffff);
	assert_int_equal(address.tcp_port, 0);
	assert_memory_equal(address.gid, stub.gids[3].gid.raw, 16);
	pair_drop(&p);
}

static void connecting_sets_every_attribute(void **state)
{
	struct dv_address remote = peer_address();
	const struct ibv_qp_attr *rtr = &stub.modify[1].attr, *rts = &stub.modify[2].attr;
	struct pair p;

	stub.limits.max_qp_rd_atom = 8;
	p = pair_make();
	assert_int_equal(ops->qp_connect(p.qp, &remote), 0);
	assert_int_equal(stub.modifies, 3);
	assert_int_equal(stub.modify[1].mask,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	assert_int_equal(rtr->qp_state, IBV_QPS_RTR);
	assert_int_equal(rtr->path_mtu, IBV_MTU_2048); /* the smaller MTU of both ends */
	assert_int_equal(rtr->dest_qp_num, 0x123456);
	assert_int_equal(rtr->rq_psn, 0xabcdef);
	assert_int_equal(rtr->max_dest_rd_atomic, 8);
	assert_int_equal(rtr->min_rnr_timer, 12);
	assert_int_equal(rtr->ah_attr.is_global, 1);
	assert_int_equal(rtr->ah_attr.port_num, 1);
	assert_int_equal(rtr->ah_attr.grh.sgid_index, 3);
	assert_int_equal(rtr->ah_attr.grh.hop_limit, 64);
	assert_memory_equal(rtr->ah_attr.grh.dgid.raw, remote.gid, 16);
	assert_int_equal(stub.modify[2].mask, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						      IBV_QP_MAX_QP_RD_ATOMIC);
	assert_int_equal(rts->qp_state, IBV_QPS_RTS);
	assert_int_equal(rts->timeout, DV_ACK_TIMEOUT);
	assert_int_equal(rts->retry_cnt, 7);
	assert_int_equal(rts->rnr_retry, 7);
	assert_int_equal(rts->sq_psn, p.qp->psn);
	assert_int_equal(rts->max_rd_atomic, 16);
	pair_drop(&p);
}

static void reads_in_flight_are_limited_by_the_peer(void **state)
{
	struct dv_address remote = peer_address(), own;
	struct pair p;

	stub.limits.max_qp_rd_atom = 8;
	p = pair_make();
	ops->qp_address(p.qp, &own);
	/* the peer accepts at most this number of READs in flight */
	assert_int_equal(own.reads, 8);
	remote.reads = 4;
	assert_int_equal(ops->qp_connect(p.qp, &remote), 0);
	assert_int_equal(stub.modify[2].attr.max_rd_atomic, 4);
	assert_int_equal(stub.modify[1].attr.max_dest_rd_atomic, 8);
	pair_drop(&p);
}

static void the_ack_timeout_is_read_back_from_the_device(void **state)
{
	struct dv_options options = {.name = "mlx5_0", .gid_index = -1, .ack_timeout = 10};
	struct dv_address remote = peer_address();
	struct pair p;

	assert_int_equal(ops->open(&options, &p.device), 0);
	assert_int_equal(ops->cq_create(p.device, 64, &p.cq), 0);
	assert_int_equal(ops->qp_create(p.device, &p.cq, 64, &p.qp, &p.sq), 0);
	assert_int_equal(ops->qp_ack_ns(p.qp), 0); /* 0, because the QP is not connected */
	stub.ack_timeout = 13;
	assert_int_equal(ops->qp_connect(p.qp, &remote), 0);
	assert_int_equal(stub.modify[2].attr.timeout, 10);
	assert_int_equal(ops->qp_ack_ns(p.qp), 4096u << 13);
	assert_non_null(
		strstr(stub.log, "ACK time-out 13: a lost packet is retransmitted after 33.6 ms"));
	assert_non_null(strstr(stub.log, "and uses this one"));
	pair_drop(&p);
}

/* If the ACK time-out cannot be read back from the device, the requested one counts. */
static void an_unreadable_ack_timeout_is_the_requested_one(void **state)
{
	struct dv_address remote = peer_address();
	struct pair p = pair_make();

	stub.ack_timeout = 20;
	/* the third call from here fails; the calls are RTR, RTS, query */
	stub.fail_at = stub.calls + 3;
	assert_int_equal(ops->qp_connect(p.qp, &remote), 0);
	assert_int_equal(ops->qp_ack_ns(p.qp), 4096u << DV_ACK_TIMEOUT);
	pair_drop(&p);
}

static void a_path_has_the_configured_class_level_and_partition(void **state)
{
	struct dv_options options = {.name = "mlx5_0",
		.gid_index = -1,
		.traffic_class = 106,
		.service_level = 3,
		.pkey_index = 2,
		.one_flow = true};
	struct dv_address remote = peer_address();
	struct pair p;

	stub.port.pkey_tbl_len = 3;
	assert_int_equal(ops->open(&options, &p.device), 0);
	assert_int_equal(ops->cq_create(p.device, 64, &p.cq), 0);
	assert_int_equal(ops->qp_create(p.device, &p.cq, 64, &p.qp, &p.sq), 0);
	assert_int_equal(ops->qp_connect(p.qp, &remote), 0);
	assert_int_equal(stub.modify[0].attr.pkey_index, 2);
	assert_int_equal(stub.modify[1].attr.ah_attr.sl, 3);
	assert_int_equal(stub.modify[1].attr.ah_attr.grh.traffic_class, 106);
	assert_int_equal(stub.modify[1].attr.ah_attr.grh.flow_label, 0);
	pair_drop(&p);
}

/*
 * The same function as the kernel's rdma_flow_label_to_udp_sport(): the UDP source port of a flow
 * label.
 */
static unsigned udp_port_of(uint32_t flow_label)
{
	return 0xc000 | ((flow_label & 0x3fff) ^ (flow_label >> 14));
}

static void queue_pairs_to_one_peer_use_different_udp_ports(void **state)
{
	static bool seen[1 << 16];
	struct dv_address remote = peer_address();

	memset(seen, 0, sizeof(seen));
	for (unsigned i = 0; i < 256; i++) {
		struct pair p;
		uint32_t label;

		stub_qp.qp_num = 0x4711 + i;
		stub.modifies = 0;
		p = pair_make();
		assert_int_equal(ops->qp_connect(p.qp, &remote), 0);
		label = stub.modify[1].attr.ah_attr.grh.flow_label;
		assert_in_range(label, 1, 0xfffff);
		assert_false(seen[udp_port_of(label)]);
		seen[udp_port_of(label)] = true;
		pair_drop(&p);
	}
	stub_qp.qp_num = 0x4711;
}

static void infiniband_connects_by_lid(void **state)
{
	struct dv_address remote = peer_address();
	struct pair p;

	stub.port.link_layer = IBV_LINK_LAYER_INFINIBAND;
	stub.port.lid = 12;
	stub_gid(0, IBV_GID_TYPE_IB, "fe80::b");
	p = pair_make();
	remote.kind = DV_ADDRESS_INFINIBAND;
	assert_int_equal(ops->qp_connect(p.qp, &remote), -EPROTO);
	error_has("no LID");
	remote.lid = 34;
	remote.mtu = IBV_MTU_4096;
	assert_int_equal(ops->qp_connect(p.qp, &remote), 0);
	assert_int_equal(stub.modify[1].attr.ah_attr.is_global, 0);
	assert_int_equal(stub.modify[1].attr.ah_attr.dlid, 34);
	assert_int_equal(stub.modify[1].attr.path_mtu, IBV_MTU_4096);
	pair_drop(&p);
}

static void a_malformed_address_is_refused_without_a_transition(void **state)
{
	struct pair p = pair_make();
	struct dv_address bad[9];

	for (unsigned i = 0; i < 9; i++)
		bad[i] = peer_address();
	bad[0].version = 2;
	bad[1].kind = DV_ADDRESS_INFINIBAND;
	bad[2].kind = 3;
	bad[3].mtu = 0;
	bad[4].mtu = 6;
	bad[5].qpn = 0;
	bad[6].qpn = 0x1000000;
	bad[7].psn = 0x1000000;
	bad[8].reads = 0;
	for (unsigned i = 0; i < 9; i++) {
		assert_int_equal(ops->qp_connect(p.qp, &bad[i]), -EPROTO);
		error_has("the peer's address is refused");
	}
	bad[0] = peer_address();
	memset(bad[0].gid, 0, 16);
	assert_int_equal(ops->qp_connect(p.qp, &bad[0]), -EPROTO);
	assert_int_equal(stub.modifies, 1);
	pair_drop(&p);
}

static void a_failed_transition_is_named(void **state)
{
	struct dv_address remote = peer_address();
	struct pair p = pair_make();

	stub.fail_errno = ETIMEDOUT;
	stub.fail_at = stub.calls + 1;
	assert_int_equal(ops->qp_connect(p.qp, &remote), -ETIMEDOUT);
	error_has("QP 0x4711 of mlx5_0: INIT -> RTR: Connection timed out. Can ::ffff:10.0.0.2");
	stub.fail_at = stub.calls + 2;
	assert_int_equal(ops->qp_connect(p.qp, &remote), -ETIMEDOUT);
	error_has("RTR -> RTS");
	stub.fail_at = stub.calls + 1;
	assert_int_equal(ops->qp_error(p.qp), -ETIMEDOUT);
	error_has("-> ERR");
	pair_drop(&p);
}

static void an_error_is_one_transition(void **state)
{
	struct pair p = pair_make();

	assert_int_equal(ops->qp_error(p.qp), 0);
	assert_int_equal(stub.modifies, 2);
	assert_int_equal(stub.modify[1].attr.qp_state, IBV_QPS_ERR);
	assert_int_equal(stub.modify[1].mask, IBV_QP_STATE);
	pair_drop(&p);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(a_qp_is_requested_with_these_attributes),
		TEST(the_hot_handle_has_the_values_of_mlx5dv),
		TEST(an_impossible_qp_is_refused_and_freed),
		TEST(the_address_has_what_a_peer_needs),
		TEST(connecting_sets_every_attribute),
		TEST(reads_in_flight_are_limited_by_the_peer),
		TEST(the_ack_timeout_is_read_back_from_the_device),
		TEST(an_unreadable_ack_timeout_is_the_requested_one),
		TEST(a_path_has_the_configured_class_level_and_partition),
		TEST(queue_pairs_to_one_peer_use_different_udp_ports),
		TEST(infiniband_connects_by_lid),
		TEST(a_malformed_address_is_refused_without_a_transition),
		TEST(a_failed_transition_is_named),
		TEST(an_error_is_one_transition),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
