/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What --check does: opens and closes again those parts of the control plane that need nothing
 * which an engine that serves now may hold. Start-up, control plane's thread.
 */
#include <errno.h>
#include <stdlib.h>

#include "engine/control/base/control.h"
#include "engine/control/members/etcd.h"
#include "engine/control/members/member.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"

int seeds_check(struct control *control)
{
	struct members *scratch = calloc(1, sizeof(*scratch));
	int rc = scratch ? member_seeds(control->settings, scratch) : -ENOMEM;

	free(scratch);
	return rc < 0 ? rc : 0;
}

/* Is cluster.address, or cluster.bind, an address of this host? Any free port tells. */
static int address_check(struct control *control)
{
	const struct settings *s = control->settings;
	struct settings any = *s;
	int rc;

	any.cluster_port = 0;
	control->settings = &any;
	rc = rpc_port_open(control);
	rpc_port_close(control);
	control->settings = s;
	return rc;
}

static int etcd_check(struct control *control)
{
	int rc;

	control->base = event_base_new();
	if (!control->base)
		return -ENOMEM;
	rc = etcd_open(control);
	if (rc == 0)
		etcd_close(control);
	event_base_free(control->base);
	return rc;
}

int control_check(const struct settings *settings, const struct plan *plan)
{
	int (*const checks[])(struct control * control) = {
		identity_open, address_check, seeds_check, etcd_check, tier_check};
	struct control *control = control_new(settings, plan);
	int rc = control ? 0 : -ENOMEM;

	for (size_t i = 0; control && i < sizeof(checks) / sizeof(checks[0]); i++) {
		int failed = checks[i](control);

		rc = failed < 0 && rc == 0 ? failed : rc;
	}
	free(control);
	return rc;
}
