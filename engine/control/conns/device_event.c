/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the asynchronous events of the NICs: a port lost its link, a device or a queue failed. A
 * rail without a link is taken out of use at once, before requests on it time out. The log tells
 * the operator which port to check, and when it works again. Control plane's thread only.
 */
#include <event2/event.h>
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/conns/conn.h"
#include "engine/control/conns/device_event.h"

#define EVENTS_BURST 16u /* limit of the events that are read in one turn from one device */

struct device_watch {
	struct event *event[RAILS_MAX];
};

static void tell(struct control *control, unsigned rail, const struct dv_event *event)
{
	const char *name = control->plan.rail[rail].device;

	switch (event->kind) {
	case DV_EVENT_PORT_DOWN:
		log_error(
			"rail %u: %s port %u lost its link: reads go over other rails; check the cable and the switch",
			rail, name, event->port);
		conns_port(control, rail, false);
		break;
	case DV_EVENT_PORT_UP:
		log_info("rail %u: %s port %u has its link again", rail, name, event->port);
		conns_port(control, rail, true);
		break;
	case DV_EVENT_DEVICE_FATAL: conns_device_lost(control, rail, event->text); break;
	case DV_EVENT_CQ_OVERRUN:
		log_error("rail %u: %s: a completion queue overran: please report it", rail, name);
		conns_device_lost(control, rail, event->text);
		break;
	case DV_EVENT_QP_ERROR: conns_qp_failed(control, rail, event->qpn, event->text); break;
	case DV_EVENT_OTHER: log_info("rail %u: %s: %s", rail, name, event->text); break;
	}
}

static void ready(evutil_socket_t fd, short what, void *argument)
{
	struct control *control = argument;

	(void)what;
	for (unsigned i = 0; i < control->rails; i++) {
		struct dv_device *device = control->rail[i].device;
		struct dv_event event;
		int status = 1;

		if (!control->device_watch->event[i] ||
			event_get_fd(control->device_watch->event[i]) != fd)
			continue;
		for (unsigned n = 0; n < EVENTS_BURST && control->device_watch->event[i]; n++) {
			status = dv_event_next(device, &event);
			if (status != 1)
				break;
			tell(control, i, &event);
		}
		if (status < 0)
			conns_device_lost(control, i, dv_error());
	}
}

int device_event_open(struct control *control)
{
	struct device_watch *watch = calloc(1, sizeof(*watch));

	if (!watch)
		return -ENOMEM;
	control->device_watch = watch;
	for (unsigned i = 0; i < control->rails; i++) {
		int fd = dv_event_fd(control->rail[i].device);

		if (fd < 0)
			continue; /* this NIC's device reports no events */
		watch->event[i] =
			event_new(control->base, fd, EV_READ | EV_PERSIST, ready, control);
		if (!watch->event[i] || event_add(watch->event[i], NULL)) {
			device_event_close(control);
			return -ENOMEM;
		}
	}
	return 0;
}

void device_event_forget(struct control *control, unsigned rail)
{
	struct device_watch *watch = control->device_watch;

	if (watch && watch->event[rail])
		event_free(watch->event[rail]);
	if (watch)
		watch->event[rail] = NULL;
}

void device_event_close(struct control *control)
{
	struct device_watch *watch = control->device_watch;

	for (unsigned i = 0; watch && i < RAILS_MAX; i++)
		if (watch->event[i])
			event_free(watch->event[i]);
	free(watch);
	control->device_watch = NULL;
}
