/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous events of a NIC: its port lost or regained the link, the device failed, a queue
 * failed. Control plane only; no function here blocks.
 */
#include <fcntl.h>

#include "dv/verbs.h"

/*
 * Returns the event descriptor, set to O_NONBLOCK: without it ibv_get_async_event() would wait for
 * the next event.
 */
int dv_verbs_event_fd(struct dv_device *device)
{
	int fd, flags;

	if (!dv_verbs_enter(device))
		return dv_fail(-ENODEV, "events of %s: the device is lost", device->name);
	fd = device->context->async_fd;
	dv_verbs_leave(device);
	flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return dv_fail(-errno, "events of %s: fcntl: %m", device->name);
	return fd;
}

static enum dv_event_kind kind_of(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_PORT_ACTIVE: return DV_EVENT_PORT_UP;
	case IBV_EVENT_PORT_ERR: return DV_EVENT_PORT_DOWN;
	case IBV_EVENT_GID_CHANGE:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER: return DV_EVENT_ADDRESS;
	case IBV_EVENT_DEVICE_FATAL: return DV_EVENT_DEVICE_FATAL;
	case IBV_EVENT_CQ_ERR: return DV_EVENT_CQ_OVERRUN;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR: return DV_EVENT_QP_ERROR;
	default: return DV_EVENT_OTHER;
	}
}

/*
 * Acknowledges the event before it returns, because libibverbs blocks the destruction of a queue
 * until its events are acknowledged.
 */
int dv_verbs_event_next(struct dv_device *device, struct dv_event *ret)
{
	struct ibv_async_event event;

	if (!dv_verbs_enter(device))
		return 0;
	if (ibv_get_async_event(device->context, &event)) {
		dv_verbs_leave(device);
		return errno == EAGAIN ? 0 : dv_fail(-errno, "events of %s: %m", device->name);
	}
	*ret = (struct dv_event){
		.kind = kind_of(event.event_type), .text = ibv_event_type_str(event.event_type)};
	if (ret->kind == DV_EVENT_PORT_UP || ret->kind == DV_EVENT_PORT_DOWN ||
		ret->kind == DV_EVENT_ADDRESS) {
		ret->port = (uint8_t)event.element.port_num;
		if (ret->port != device->port)
			/* the event is of another port of this NIC and is ignored */
			ret->kind = DV_EVENT_OTHER;
	} else if (ret->kind == DV_EVENT_QP_ERROR) {
		ret->qpn = event.element.qp->qp_num;
	}
	ibv_ack_async_event(&event);
	dv_verbs_leave(device);
	return 1;
}
