/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which lines of ports.def are in use with given settings. Pure: any thread.
 */
#include "config/ports.h"

#include <string.h>

enum port_line { PORT_CLUSTER, PORT_METRICS, PORT_SOFT, PORT_ROCE, PORT_LINES };

static const struct {
	const char *setting, *protocol, *who;
} lines[] = {
#define PORT(setting, protocol, fallback, who) {#setting, #protocol, who},
#include "config/ports.def"
#undef PORT
};
_Static_assert(sizeof(lines) / sizeof(lines[0]) == PORT_LINES, "a case of ports_list() for each");

unsigned ports_rails(const struct settings *s, unsigned *ret_soft)
{
	const char *at = s->rail_devices + strspn(s->rail_devices, ", \t");
	unsigned rails = 0;

	*ret_soft = 0;
	if (settings_seed_only(s))
		return 0;
	for (; *at; at += strspn(at, ", \t")) {
		*ret_soft += strncmp(at, "soft", 4) == 0;
		rails++;
		at += strcspn(at, ", \t");
	}
	return rails;
}

static struct port_use use(enum port_line line, const char *address, int64_t port)
{
	return (struct port_use){lines[line].setting, lines[line].protocol, lines[line].who,
		address, (unsigned)port, 1, line != PORT_ROCE};
}

unsigned ports_list(const struct settings *s, struct port_use ret[PORTS_MAX])
{
	const char *own = s->cluster_address;
	unsigned soft, rails = ports_rails(s, &soft), n = 0;

	ret[n++] = use(PORT_CLUSTER, s->cluster_bind[0] ? s->cluster_bind : own, s->cluster_port);
	if (s->metrics_port)
		ret[n++] = use(PORT_METRICS, s->metrics_address[0] ? s->metrics_address : own,
			s->metrics_port);
	if (s->soft_link == LINK_TCP && soft) {
		ret[n] = use(PORT_SOFT, s->soft_address[0] ? s->soft_address : own, s->soft_port);
		ret[n++].ports = soft;
	}
	if (soft < rails)
		ret[n++] = use(PORT_ROCE, "", 4791);
	return n;
}

void ports_print(const struct settings *s, FILE *out)
{
	struct port_use list[PORTS_MAX];
	unsigned count = ports_list(s, list);

	fprintf(out, "%-12s %-13s %-6s %s\n", "port", "setting", "proto", "who connects");
	for (unsigned i = 0; i < count; i++) {
		char port[24] = "any";

		if (list[i].port && list[i].ports > 1)
			snprintf(port, sizeof(port), "%u-%u", list[i].port,
				list[i].port + list[i].ports - 1);
		else if (list[i].port)
			snprintf(port, sizeof(port), "%u", list[i].port);
		fprintf(out, "%-12s %-13s %-6s %s\n", port, list[i].setting, list[i].protocol,
			list[i].who);
	}
}
