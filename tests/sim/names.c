/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of net.h that simulated engines do not use: binding, and names. One thread. */
#include <errno.h>

#include "tests/sim/world.h"

int net_bind(const struct sockaddr *address, socklen_t bytes)
{
	(void)address;
	(void)bytes;
	return -EADDRNOTAVAIL; /* simulated engines do not bind */
}

struct net_resolver *net_resolver_new(struct event_base *base)
{
	(void)base;
	return NULL; /* seeds of the simulator are addresses */
}

void net_resolver_free(struct net_resolver *resolver)
{
	(void)resolver;
}

struct net_query *net_resolve(struct net_resolver *resolver, const char *host, uint16_t port,
	net_resolved call, void *context)
{
	(void)resolver;
	(void)host;
	(void)port;
	call(context, "the simulator has no names", NULL);
	return NULL;
}

void net_resolve_cancel(struct net_query *query)
{
	(void)query;
}
