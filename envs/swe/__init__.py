"""Issues of repositories: records in the forms of SWE-bench, SWE-rebench and SWE-smith."""
