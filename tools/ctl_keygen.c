/* SPDX-License-Identifier: Apache-2.0 */
/* peercachectl keygen: a new file for cluster.psk_file. One thread. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "config/psk.h"
#include "tools/common.h"
#include "tools/ctl.h"

int ctl_keygen(const struct ctl_run *ctl, const char *path)
{
	uint64_t id = psk_file_make(path);
	char number[24];

	if (!id)
		die("%s: %s%s", path, strerror(errno),
			errno == EEXIST
				? "; a key that engines may use is not overwritten: give a new name"
				: "");
	snprintf(number, sizeof(number), "%016" PRIx64, id);
	if (ctl->json) {
		json_object *o = json_object_new_object();

		json_object_object_add(o, "file", json_object_new_string(path));
		json_object_object_add(o, "key", json_object_new_string(number));
		print_json(o, stdout);
		return 0;
	}
	printf("%s: a new key with the number %s. Give a copy to each engine of the cluster, readable for its user only, and set cluster.psk_file to it\n",
		path, number);
	return 0;
}
