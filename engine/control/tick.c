/* SPDX-License-Identifier: Apache-2.0 */
/* The timer of the heartbeats, and what each of them calls. Control plane's thread only. */
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

	service_alive();
	if (!members_tick(control, now_ns))
		return;
	rpc_tick(control);
	directory_tick(control, now_ns);
	removals_tick(control, now_ns);
}

int tick_open(struct control *control)
{
	control->tick = net_timer_new(control->base, true, tick_fired, control);
	if (!control->tick)
		return -ENOMEM;
	net_timer_set(control->tick, (uint64_t)control->settings->cluster_heartbeat_ms * 1000);
	return 0;
}

void tick_close(struct control *control)
{
	if (control->tick)
		net_timer_free(control->tick);
	control->tick = NULL;
}
