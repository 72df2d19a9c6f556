/* SPDX-License-Identifier: Apache-2.0 */
/* peercachectl clear: of this host, or of the whole cluster. One thread. */
#include <errno.h>
#include <inttypes.h>

#include "tools/common.h"
#include "tools/ctl.h"

static int clear_cluster(struct ctl_run *ctl)
{
	unsigned hosts = 0;
	int rc = pc_clear_cluster(ctl->channel, ctl->group, ctl->restart_ms, &hosts);
	json_object *o;

	if (rc && rc != -EHOSTUNREACH)
		die("%s", pc_error());
	if (!ctl->json && rc) {
		fprintf(stderr, "%s\n", pc_error());
		return 1;
	}
	if (!ctl->json) {
		printf("%u host(s) find no page%s%s that was stored before\n", hosts,
			ctl->group ? " of namespace " : "", ctl->group ? ctl->group : "");
		return 0;
	}
	o = json_object_new_object();
	add_number(o, "hosts", hosts);
	if (rc)
		add_text(o, "failed", pc_error());
	print_json(o, stdout);
	return rc ? 1 : 0;
}

int ctl_clear(struct ctl_run *ctl)
{
	uint64_t pages = 0;

	if (ctl->cluster)
		return clear_cluster(ctl);
	if (pc_clear(ctl->channel, ctl->group, ctl->restart_ms, &pages))
		die("%s", pc_error());
	if (ctl->json) {
		json_object *o = json_object_new_object();

		add_number(o, "removed", pages);
		print_json(o, stdout);
	} else {
		printf("removed the pages of %" PRIu64 " keys%s%s from this host\n", pages,
			ctl->group ? " of namespace " : "", ctl->group ? ctl->group : "");
	}
	return 0;
}
