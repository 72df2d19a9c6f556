/* SPDX-License-Identifier: Apache-2.0 */
/* Tests numa/guest.c: which signs make a machine a guest. */
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "numa/guest.h"
#include "numa/kernel_file.h"

static char root[] = "/tmp/test_guest.XXXXXX";

/* Writes a file below `root`, and the directories on the path to it. */
static void put(const char *path, const char *text)
{
	char full[512];
	FILE *file;

	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *at = strchr(full + strlen(root) + 1, '/'); at; at = strchr(at + 1, '/')) {
		*at = 0;
		mkdir(full, 0700);
		*at = '/';
	}
	file = fopen(full, "we");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void take_away(const char *path)
{
	char full[512];

	snprintf(full, sizeof(full), "%s%s", root, path);
	assert_int_equal(unlink(full), 0);
}

static int setup(void **state)
{
	strcpy(root + strlen(root) - 6, "XXXXXX");
	assert_non_null(mkdtemp(root));
	kernel_file_root(root);
	guest_test_cpu(0);
	return 0;
}

static int teardown(void **state)
{
	char command[64];

	kernel_file_root(NULL);
	guest_test_cpu(-1);
	snprintf(command, sizeof(command), "rm -r %s", root);
	return system(command);
}

static void a_machine_without_any_sign_is_no_guest(void **state)
{
	assert_null(guest_sign());
	put("/sys/class/dmi/id/sys_vendor", "Dell Inc.\n");
	put("/sys/class/dmi/id/product_name", "PowerEdge XE9680\n");
	put("/sys/class/dmi/id/bios_vendor", "Dell Inc.\n");
	assert_null(guest_sign());
}

static void the_processors_bit_makes_a_guest(void **state)
{
	guest_test_cpu(1);
	assert_non_null(strstr(guest_sign(), "CPUID"));
}

static void each_file_makes_a_guest(void **state)
{
	static const char *const sign[][2] = {{"/sys/hypervisor/type", "xen\n"},
		{"/proc/device-tree/hypervisor/compatible", "linux,kvm"},
		{"/sys/class/dmi/id/sys_vendor", "QEMU\n"},
		{"/sys/class/dmi/id/product_name", "KVM Virtual Machine\n"},
		{"/sys/class/dmi/id/bios_vendor", "VMware, Inc.\n"}};

	for (unsigned i = 0; i < sizeof(sign) / sizeof(sign[0]); i++) {
		assert_null(guest_sign());
		put(sign[i][0], sign[i][1]);
		assert_non_null(guest_sign());
		assert_non_null(strstr(guest_sign(), i == 1 ? "device tree" : sign[i][0]));
		take_away(sign[i][0]);
	}
}

static void an_empty_file_is_no_sign(void **state)
{
	put("/sys/hypervisor/type", "\n");
	put("/sys/class/dmi/id/sys_vendor", "");
	assert_null(guest_sign());
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_machine_without_any_sign_is_no_guest),
		TEST(the_processors_bit_makes_a_guest),
		TEST(each_file_makes_a_guest),
		TEST(an_empty_file_is_no_sign),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
