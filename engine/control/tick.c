/* SPDX-License-Identifier: Apache-2.0 */
/* The timers of the heartbeats and of the signs of life. Control plane's thread only. */
#include "engine/control/control_inner.h"

#include <errno.h>

#include "engine/control/base/control.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/keeper/service.h"

static void tick_fired(void *context)
{
	struct control *control = context;
	uint64_t now_ns = net_now();

	if (!members_tick(control, now_ns))
		return;
	member_seeds_tick(control, now_ns);
	rpc_tick(control, now_ns);
	directory_tick(control, now_ns);
}

static void alive_fired(void *context)
{
	(void)context;
	service_alive();
}

int tick_open(struct control *control)
{
	control->tick = net_timer_new(control->base, true, tick_fired, control);
	if (!control->tick)
		return -ENOMEM;
	if (service_alive_ns()) {
		control->alive = net_timer_new(control->base, true, alive_fired, control);
		if (!control->alive || net_timer_set(control->alive, service_alive_ns() / 1000) < 0)
			goto failed;
		service_alive();
	}
	if (net_timer_set(control->tick, control_beat_ns(control) / 1000) < 0)
		goto failed;
	return 0;

failed:
	tick_close(control);
	return -ENOMEM;
}

void tick_close(struct control *control)
{
	net_timer_free(control->tick);
	net_timer_free(control->alive);
	control->tick = control->alive = NULL;
}
