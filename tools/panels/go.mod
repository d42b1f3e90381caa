// No Go here: packages of npm bring some, which is none of the module around it.
module github.com/lanetrace/lanetrace/tools/panels

go 1.26
