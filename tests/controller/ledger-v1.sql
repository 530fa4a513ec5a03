BEGIN TRANSACTION;
CREATE TABLE dpgb_accounts (
	name VARCHAR(200) NOT NULL, 
	epsilon TEXT NOT NULL, 
	delta TEXT NOT NULL, 
	analysis VARCHAR(16) NOT NULL, 
	cap TEXT NOT NULL, 
	spent TEXT NOT NULL, 
	tau TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "dpgb_accounts" VALUES('a','3.0','1e-06','gdp','7738683822576899621','2066903016118203264','3.3306690738788015e-19');
CREATE TABLE dpgb_entries (
	seq INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	account VARCHAR(200) NOT NULL, 
	fit_id VARCHAR(80) NOT NULL, 
	at VARCHAR(40) NOT NULL, 
	body TEXT NOT NULL, 
	prev VARCHAR(64) NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	PRIMARY KEY (seq)
);
INSERT INTO "dpgb_entries" VALUES(1,'OPEN','a','','2026-11-22T03:22:43+00:00','{"analysis":"gdp","cap":"7738683822576899621","delta":"1e-06","epsilon":"3.0"}','0000000000000000000000000000000000000000000000000000000000000000','3d6a82333641a8cefe9600d60ef815aa3921e1959a595d3fd7c2bba85f5d741f');
INSERT INTO "dpgb_entries" VALUES(2,'RESERVED','a','a5d6ea146f6a169f5ee52999','2026-11-22T03:22:43+00:00','{"charge":"1033451508059101632","commitment":"6bb431a571eaefebbd8282b0d57c7f98e9dbfc9aa0f23b50a12690c0bac080a0","delta":1e-06,"epsilon":1.0,"facts":{"recipe":"a recipe"},"min_sigma_bits":20,"plan_digest":"706c616e","price":"1033451508059101632","public_seed":5,"pure":false,"tau":1.1102230246262669e-19,"version":"dpgb_dask 0.1.0, sampler 2"}','3d6a82333641a8cefe9600d60ef815aa3921e1959a595d3fd7c2bba85f5d741f','7f168b2717cd6db7ea32aaf2c3c4566abe7ba9f75c1fc23bd0e1c43834ebbd40');
INSERT INTO "dpgb_entries" VALUES(3,'BOUND','a','a5d6ea146f6a169f5ee52999','2026-11-22T03:22:43+00:00','{"fingerprint":"3064d372f94f074045b289bb6a1e61e70b3ba734111c39157bf8764e62e112ab"}','7f168b2717cd6db7ea32aaf2c3c4566abe7ba9f75c1fc23bd0e1c43834ebbd40','1ac33c7cc3f0df5f29c976dfefc6e45f10608f7fd131cbe48f759a35f6b6df03');
INSERT INTO "dpgb_entries" VALUES(4,'OPENED','a','a5d6ea146f6a169f5ee52999','2026-11-22T03:22:43+00:00','{"position":0,"price":"18446744073709551","query_id":"8c2424d49f51bb652d5a8be30063be2fee233d8f47b50e40b97802d73b2f38e6","seal":"fd554d40815903d66c3d46a703cc6955fb728eb3f91696247ad790a4527a9c64","spent":"18446744073709551"}','1ac33c7cc3f0df5f29c976dfefc6e45f10608f7fd131cbe48f759a35f6b6df03','1259c4f9f51bd67922826bc8ee0e8fc93caad1ae3435da6cef1947574239f1de');
INSERT INTO "dpgb_entries" VALUES(5,'OPENED','a','a5d6ea146f6a169f5ee52999','2026-11-22T03:22:48+00:00','{"position":1,"price":"18446744073709551","query_id":"3949d62e43f13249d349e5c6735875e26538003ec0b5bfe51d829bcecfabcf60","seal":"0fdf4ab48b39c365082724f9b3a22fe8cdd32ba3626ffc84db4a2da188c3a086","spent":"36893488147419102"}','1259c4f9f51bd67922826bc8ee0e8fc93caad1ae3435da6cef1947574239f1de','c6667c3eb632b94c3dd60aaa5493410dabd1e74edb93bd9eeec9e1d7a78fac4f');
INSERT INTO "dpgb_entries" VALUES(6,'RELEASED','a','a5d6ea146f6a169f5ee52999','2026-11-22T03:22:48+00:00','{"answers":"606c2a3abefec2b5a7ad2b9ea51dd2b0e1fcbf561ddc6002543b60acb24d1d1b"}','c6667c3eb632b94c3dd60aaa5493410dabd1e74edb93bd9eeec9e1d7a78fac4f','609c057f90d48e4677b22a23db338e596c046ded6147f9ca4d1fc1583a040d70');
INSERT INTO "dpgb_entries" VALUES(7,'RESERVED','a','17584bc13f4f33c4505ec0fe','2026-11-22T03:22:48+00:00','{"charge":"1033451508059101632","commitment":"ecb93d2198b56ec07b61d4f486352222f26900a9730f3a2b626bb337e7540937","delta":1e-06,"epsilon":1.0,"facts":{"recipe":"a recipe"},"min_sigma_bits":20,"plan_digest":"706c616e","price":"1033451508059101632","public_seed":5,"pure":false,"tau":1.1102230246262669e-19,"version":"dpgb_dask 0.1.0, sampler 2"}','609c057f90d48e4677b22a23db338e596c046ded6147f9ca4d1fc1583a040d70','e4e951bf14816667b540699320d268d99d5ac87177ce39ec92dc22aa5e44ad67');
INSERT INTO "dpgb_entries" VALUES(8,'BOUND','a','17584bc13f4f33c4505ec0fe','2026-11-22T03:22:48+00:00','{"fingerprint":"dac1a832a7def95d79539e1f1e3a94da5bf9d1fd11f3f1031ff8ddce5c624b82"}','e4e951bf14816667b540699320d268d99d5ac87177ce39ec92dc22aa5e44ad67','5c17815b21561ae5babb2dd964a59c937c77f1447b6e649916a88e0bb14df6f5');
INSERT INTO "dpgb_entries" VALUES(9,'OPENED','a','17584bc13f4f33c4505ec0fe','2026-11-22T03:22:48+00:00','{"position":0,"price":"18446744073709551","query_id":"9979571d166fedd8058c584cfdcce2cd39ef635ffb20527e70c0af4782ad299a","seal":"5eb2a1d8d2f3260cd4e227fe4ba9997a52799fdcef50f595fb0065e80a48041f","spent":"18446744073709551"}','5c17815b21561ae5babb2dd964a59c937c77f1447b6e649916a88e0bb14df6f5','59898f1d577abece38ca778042d5b98dd292cefccfc60c12860dbca25fb2e0ad');
INSERT INTO "dpgb_entries" VALUES(10,'RESERVED','a','d99b31a9989ff24353397dc0','2026-11-22T03:22:48+00:00','{"charge":"1033451508059101632","commitment":"efd6fc451dbbd6dc61424d0e021b2901edb801a47059fd92897ca6fce0bf43df","delta":1e-06,"epsilon":1.0,"facts":{},"min_sigma_bits":20,"plan_digest":"706c616e","price":"1033451508059101632","public_seed":5,"pure":false,"tau":1.1102230246262669e-19,"version":"dpgb_dask 0.1.0, sampler 2"}','59898f1d577abece38ca778042d5b98dd292cefccfc60c12860dbca25fb2e0ad','d440ca712d7b31f056e8ceeb4aec05298bcc269ad08cd0fc320f5683fab5d3c0');
INSERT INTO "dpgb_entries" VALUES(11,'BOUND','a','d99b31a9989ff24353397dc0','2026-11-22T03:22:48+00:00','{"fingerprint":"04eb0351708dc7f82e58d3b271affb19d32e9f11225335145342dbc9a984cb8a"}','d440ca712d7b31f056e8ceeb4aec05298bcc269ad08cd0fc320f5683fab5d3c0','58fcb689fafbb74a0511af7e037b2bd6dfac7af959a2e9263a63c645afb63f9b');
INSERT INTO "dpgb_entries" VALUES(12,'SETTLED','a','d99b31a9989ff24353397dc0','2026-11-22T03:22:48+00:00','{"charge":"0"}','58fcb689fafbb74a0511af7e037b2bd6dfac7af959a2e9263a63c645afb63f9b','fb73e870f77c1085f09c7fc754489118b5afbcdf086da080fa89a93f0b9891e3');
CREATE TABLE dpgb_fits (
	fit_id VARCHAR(80) NOT NULL, 
	account VARCHAR(200) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	price TEXT NOT NULL, 
	terms TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	lease VARCHAR(64) NOT NULL, 
	PRIMARY KEY (fit_id)
);
INSERT INTO "dpgb_fits" VALUES('a5d6ea146f6a169f5ee52999','a','RELEASED','1033451508059101632','{"charge":"1033451508059101632","commitment":"6bb431a571eaefebbd8282b0d57c7f98e9dbfc9aa0f23b50a12690c0bac080a0","delta":1e-06,"epsilon":1.0,"facts":{"recipe":"a recipe"},"min_sigma_bits":20,"plan_digest":"706c616e","price":"1033451508059101632","public_seed":5,"pure":false,"tau":1.1102230246262669e-19,"version":"dpgb_dask 0.1.0, sampler 2"}','3064d372f94f074045b289bb6a1e61e70b3ba734111c39157bf8764e62e112ab','0c6d9d9e96af4a8165be3cc4a58add41');
INSERT INTO "dpgb_fits" VALUES('17584bc13f4f33c4505ec0fe','a','RESERVED','1033451508059101632','{"charge":"1033451508059101632","commitment":"ecb93d2198b56ec07b61d4f486352222f26900a9730f3a2b626bb337e7540937","delta":1e-06,"epsilon":1.0,"facts":{"recipe":"a recipe"},"min_sigma_bits":20,"plan_digest":"706c616e","price":"1033451508059101632","public_seed":5,"pure":false,"tau":1.1102230246262669e-19,"version":"dpgb_dask 0.1.0, sampler 2"}','dac1a832a7def95d79539e1f1e3a94da5bf9d1fd11f3f1031ff8ddce5c624b82','09a7f3d482bc5c27228ffc9a3924b9ba');
INSERT INTO "dpgb_fits" VALUES('d99b31a9989ff24353397dc0','a','SETTLED','0','{"charge":"1033451508059101632","commitment":"efd6fc451dbbd6dc61424d0e021b2901edb801a47059fd92897ca6fce0bf43df","delta":1e-06,"epsilon":1.0,"facts":{},"min_sigma_bits":20,"plan_digest":"706c616e","price":"1033451508059101632","public_seed":5,"pure":false,"tau":1.1102230246262669e-19,"version":"dpgb_dask 0.1.0, sampler 2"}','04eb0351708dc7f82e58d3b271affb19d32e9f11225335145342dbc9a984cb8a','29240fba758f5fdaed0ee9009fcb5979');
CREATE TABLE dpgb_head (
	id INTEGER NOT NULL, 
	seq BIGINT NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "dpgb_head" VALUES(1,12,'fb73e870f77c1085f09c7fc754489118b5afbcdf086da080fa89a93f0b9891e3');
CREATE INDEX dpgb_entries_of_fit ON dpgb_entries (fit_id);
CREATE INDEX dpgb_entries_of_account ON dpgb_entries (account);
COMMIT;
