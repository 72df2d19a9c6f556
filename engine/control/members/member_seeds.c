/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses cluster.seeds at start-up. Pure.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/members/member.h"

void seed_set(struct member_seed *seed, const struct seed_address *address,
	const struct settings *settings)
{
	memset(seed, 0, sizeof(*seed));
	seed->address = *address;
	seed->self = address->port == (uint16_t)settings->cluster_port &&
		     strcmp(address->host, settings->cluster_address) == 0;
}

int member_seeds(const struct settings *settings, struct members *members)
{
	char text[sizeof(settings->cluster_seeds)], *rest = NULL;
	uint16_t port = (uint16_t)settings->cluster_port;
	int count = 0;

	snprintf(text, sizeof(text), "%s", settings->cluster_seeds);
	for (char *each = strtok_r(text, ", \t", &rest); each;
		each = strtok_r(NULL, ", \t", &rest)) {
		struct seed_address address;
		char given[NAME_BYTES_MAX * 2];

		if (count == SEEDS_MAX) {
			log_error(
				"cluster.seeds names more than %d engines; give fewer: one live member is enough to learn of all others",
				SEEDS_MAX);
			return -EINVAL;
		}
		snprintf(given, sizeof(given), "%s", each);
		if (seed_parse(each, port, &address) < 0) {
			log_error(
				"cluster.seeds: \"%s\" is not address:port; write 10.0.0.1:%u, [fd00::1]:%u or name:%u",
				given, port, port, port);
			return -EINVAL;
		}
		seed_set(&members->seed[SEED_LIST * SEEDS_MAX + count++], &address, settings);
	}
	return count;
}
