/* SPDX-License-Identifier: Apache-2.0 */
/* See kernel_file.h. */
#include "numa/kernel_file.h"

#include <inttypes.h>
#include <string.h>

#define PATH_BYTES 1280

static const char *root = ""; /* prefix of every path */

void kernel_file_root(const char *new_root)
{
	root = new_root ? new_root : "";
}

FILE *kernel_file_open(const char *path)
{
	char full[PATH_BYTES];

	if (snprintf(full, sizeof(full), "%s%s", root, path) >= (int)sizeof(full))
		return NULL;
	return fopen(full, "re");
}

bool kernel_file_line(const char *path, char *ret, size_t bytes)
{
	FILE *file = kernel_file_open(path);

	if (!file || !fgets(ret, (int)bytes, file))
		ret[0] = '\0';
	ret[strcspn(ret, "\n")] = '\0';
	if (file)
		fclose(file);
	return ret[0] != '\0';
}

bool kernel_file_number(const char *path, uint64_t *ret)
{
	char line[64];

	return kernel_file_line(path, line, sizeof(line)) && sscanf(line, "%" SCNu64, ret) == 1;
}
