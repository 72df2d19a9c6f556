/* SPDX-License-Identifier: Apache-2.0 */
/* Tests dv/event.c against stubs: the port and the queue pair of each event. One thread. */
#define STUB_EVENTS
#include "tests/unit/dv/test_verbs_stub.h"

#include "dv/event.c"

static struct ibv_async_event next;
static unsigned acknowledged;

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	assert_ptr_equal(context, &stub_context.context);
	*event = next;
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	acknowledged++;
}

const char *ibv_event_type_str(enum ibv_event_type event)
{
	return "an event";
}

static struct dv_event next_event(struct dv_device *device, enum ibv_event_type type)
{
	struct dv_event event = {0};

	next.event_type = type;
	acknowledged = 0;
	assert_int_equal(dv_verbs_event_next(device, &event), 1);
	/* an event that was not acknowledged would block the destruction of its queue */
	assert_int_equal(acknowledged, 1);
	return event;
}

static void events_of_another_port_are_ignored(void **state)
{
	struct dv_options options = {.name = "mlx5_0", .gid_index = -1, .port = 2};
	struct dv_device *device;

	stub.limits.phys_port_cnt = 2;
	for (unsigned i = 0; i < STUB_GIDS; i++)
		stub.gids[i].port_num = 2;
	assert_int_equal(dv_verbs_ops.open(&options, &device), 0);
	next.element.port_num = 1;
	assert_int_equal(next_event(device, IBV_EVENT_PORT_ERR).kind, DV_EVENT_OTHER);
	assert_int_equal(next_event(device, IBV_EVENT_GID_CHANGE).kind, DV_EVENT_OTHER);
	assert_int_equal(next_event(device, IBV_EVENT_PORT_ACTIVE).kind, DV_EVENT_OTHER);
	next.element.port_num = 2;
	assert_int_equal(next_event(device, IBV_EVENT_PORT_ERR).kind, DV_EVENT_PORT_DOWN);
	assert_int_equal(next_event(device, IBV_EVENT_GID_CHANGE).kind, DV_EVENT_ADDRESS);
	assert_int_equal(next_event(device, IBV_EVENT_LID_CHANGE).kind, DV_EVENT_ADDRESS);
	assert_int_equal(next_event(device, IBV_EVENT_PORT_ACTIVE).kind, DV_EVENT_PORT_UP);
	assert_int_equal(next_event(device, IBV_EVENT_PORT_ACTIVE).port, 2);
	dv_verbs_ops.close(device);
}

static void a_failed_queue_pair_is_named(void **state)
{
	struct dv_device *device = stub_open();

	next.element.qp = &stub_qp;
	assert_int_equal(next_event(device, IBV_EVENT_QP_FATAL).kind, DV_EVENT_QP_ERROR);
	assert_int_equal(next_event(device, IBV_EVENT_QP_FATAL).qpn, 0x4711);
	assert_int_equal(next_event(device, IBV_EVENT_QP_ACCESS_ERR).qpn, 0x4711);
	assert_int_equal(next_event(device, IBV_EVENT_DEVICE_FATAL).kind, DV_EVENT_DEVICE_FATAL);
	assert_int_equal(next_event(device, IBV_EVENT_CQ_ERR).kind, DV_EVENT_CQ_OVERRUN);
	dv_verbs_ops.close(device);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(events_of_another_port_are_ignored),
		TEST(a_failed_queue_pair_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
