/* SPDX-License-Identifier: Apache-2.0 */
/* The address that this engine tells others, when cluster.address is no address. At start-up. */
#ifndef CONTROL_ADDRESS_H
#define CONTROL_ADDRESS_H

#include "config/settings.h"

/*
 * Replaces cluster.address = auto, and host names on which the engine listens (metrics.address,
 * too), by an address of this host. A name that cluster.bind makes an advertised one stays. May
 * wait for the resolver. Returns 0, or -EINVAL after logging the reason.
 */
int address_settle(struct settings *settings);

#endif
